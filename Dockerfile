# One image for every process of Tenure: the command says which. Official base, everything locked by hash.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY requirements/ requirements/
RUN python -m venv tools \
 && tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check \
      --require-hashes -r requirements/bootstrap.txt \
 && tools/bin/uv venv --quiet --python "$(command -v python)" /opt/tenure \
 && tools/bin/uv pip sync --quiet --no-cache --compile-bytecode --require-hashes \
      --python /opt/tenure/bin/python requirements/image.txt
COPY . .
# The build backend comes by hash as well: the lock for work on Tenure has it.
RUN tools/bin/uv build --quiet --no-cache --wheel --out-dir dist \
      --require-hashes --build-constraints requirements/dev.txt \
 && tools/bin/uv pip install --quiet --no-cache --compile-bytecode --no-deps \
      --python /opt/tenure/bin/python dist/*.whl

FROM ${PYTHON_IMAGE}
# A fixed number, so that volumes and policies can name it. The folder is where executors keep their
# inbox; a volume that is mounted there takes over its owner.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent \
      --shell /usr/sbin/nologin tenure \
 && install -d -o tenure -g tenure -m 700 /var/lib/tenure
COPY --from=build /opt/tenure /opt/tenure
ENV PATH=/opt/tenure/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    TENURE_STATE_DIR=/var/lib/tenure
USER 10001:10001
WORKDIR /var/lib/tenure
ENTRYPOINT ["tenure"]
CMD ["--help"]

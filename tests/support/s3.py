"""A real S3 server on this machine, from a wheel: SeaweedFS."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

from tenure.cli.local.ports import LOOPBACK, reserve_port
from tests.support.waiting import eventually

_NAMES = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True)
class S3Server:
    """``endpoint`` answers to these keys and no others."""

    endpoint: str
    key_id: str
    secret: str

    def store(self, bucket: str = "outputs") -> S3Store:
        """A bucket, made by its first object. Nothing is repeated behind a test's back."""
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id=self.key_id,
            secret_access_key=self.secret,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )


@asynccontextmanager
async def s3_server(folder: Path) -> AsyncIterator[S3Server]:
    """Started, and stopped at the end of the block."""
    key_id, secret = secrets.token_hex(8), secrets.token_hex(16)
    with ExitStack() as stack:
        ports = {name: reserve_port() for name in _NAMES}
        for reservation in ports.values():
            stack.callback(reservation.release)
        (folder / "s3").mkdir()
        with (folder / "s3.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                Path(sys.executable).with_name("weed"), "server",
                f"-dir={folder / 's3'}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}",
                # Each bucket takes volumes of its own, several at once.
                "-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=100",
                "-master.volumeSizeLimitMB=64", "-master.heartbeatInterval=100ms",
                "-master.electionTimeout=1s",
                *(f"-{name}={each.port}" for name, each in ports.items()),
                env={"PATH": os.environ["PATH"], "HOME": str(folder),
                     "AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret},
                stdout=log, stderr=log,
            )  # fmt: skip
        server = S3Server(f"http://{LOOPBACK}:{ports['s3.port'].port}", key_id, secret)
        try:

            async def takes_objects() -> bool:
                assert process.returncode is None, (folder / "s3.log").read_text()
                try:
                    await obstore.put_async(server.store(), "probe", b"")
                except (obstore.exceptions.BaseError, OSError):
                    return False
                return True

            await eventually(takes_objects)
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

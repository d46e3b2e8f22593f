# The only commands to remember. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Source folders; bench and examples count once they hold a program.
CODE := contract settings coordinator relay executor client cli tests \
        $(patsubst %/,%,$(sort $(dir $(wildcard bench/*.py examples/*.py examples/*/*.py))))

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-21s %s\n", $$1, $$2}'

.PHONY: install
install: $(INSTALLED) ## Make .venv with the locked dependencies and Tenure in place

# uv comes first, by hash, through pip; then everything else, by hash, through uv. The build backend is
# locked too, so the last step builds without fetching anything.
$(INSTALLED): pyproject.toml requirements/bootstrap.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tenure needs Python 3.11 or newer: make PYTHON=python3.12 install")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: system-deps
system-deps: ## Install a RabbitMQ server where that can be done without asking
	@deploy/install-rabbitmq

# Only the tests go through a pooler. Where it cannot be had, those that need it fail and say so.
.PHONY: test-deps
test-deps:
	@deploy/install-pgbouncer || true
	@deploy/install-libfaketime || true

.PHONY: demo
demo: install system-deps ## Hash every file of a folder, end to end; ARGS="--input DIR" for another folder
	@$(BIN)/python -m tenure.cli.demo $(ARGS)

.PHONY: compose-demo
compose-demo: ## Start compose.yaml and hash the standard library there; `docker compose down -v` ends it
	@deploy/make-env
	docker compose up --build --detach --wait
	docker compose run --rm --no-TTY demo

# The tests start their own servers, unless they are told to use others.
.PHONY: test
test: install test-deps $(if $(filter external docker,$(TENURE_TEST_SERVICES)),,system-deps) ## Run the tests; ARGS="-k name" for some of them
	@$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

.PHONY: sigterms
sigterms: install system-deps ## End executors by SIGTERM at 200 random instants, half an hour; SEED=n
	@TENURE_TEST_SIGTERMS=200 TENURE_TEST_SEED=$(or $(SEED),7) $(BIN)/python -m pytest tests/chaos/test_sigterms.py --timeout 5400 $(ARGS)

.PHONY: test-kit
test-kit: install system-deps ## Do every fault of the testing kit in memory and on real servers, and compare, some minutes
	@TENURE_TEST_KIT=all $(BIN)/python -m pytest tests/unit/testing tests/integration/executor/test_fleets.py tests/integration/examples/test_their_own_tests.py $(ARGS)

.PHONY: explore
explore: install ## Explore larger worlds of decisions than the tests do, some minutes
	@$(BIN)/python -m tests.support.explore $(ARGS)

# What takes minutes and kills processes: a trial is a program of tests/trials.
.PHONY: trial-authority
trial-authority: install system-deps ## Kill replicas and executors for two minutes under 10,000 tasks; ARGS="--seed N"
	@$(BIN)/python -m tests.trials.authority $(ARGS)

.PHONY: trial-retention
trial-retention: install ## Remove two million ended rows at three places at once under 500 events/s; ARGS="--rows N"
	@$(BIN)/python -m tests.trials.retention $(ARGS)

.PHONY: trial-cgroups
trial-cgroups: install test-deps ## Control groups of version 2 in user-mode Linux (apt-get install user-mode-linux), a minute
	@$(BIN)/python -m tests.trials.control_groups $(ARGS)

.PHONY: trials-as-stated
trials-as-stated: install system-deps ## Trials of drains, poison and pools at the figures of the reported faults
	@TENURE_TEST_AS_STATED=1 $(BIN)/python -m pytest tests/chaos/test_drain.py tests/chaos/test_poison.py \
		tests/chaos/test_broker_faults.py tests/integration/database/test_pool_exhausted.py $(ARGS)

.PHONY: trial-broker-cluster
trial-broker-cluster: install system-deps ## Three brokers: the queues' leader killed, then the majority, a minute
	@$(BIN)/python -m tests.trials.broker_cluster

.PHONY: test-rabbitmq4
test-rabbitmq4: install test-deps ## Run what talks to the broker on RabbitMQ 4.0, where a Docker engine answers
	@TENURE_TEST_SERVICES=docker $(BIN)/python -m pytest \
		tests/integration/events tests/integration/parking tests/integration/relay tests/integration/replay \
		tests/integration/executor/test_assignments.py tests/integration/executor/test_end_to_end.py \
		tests/integration/executor/test_without_broker.py tests/chaos/test_many_relays.py \
		tests/chaos/test_poison.py tests/chaos/test_relay_killed.py tests/chaos/test_unroutable.py $(ARGS)

.PHONY: chaos
chaos: install system-deps ## Kill, suspend and poison everything for ten minutes; ARGS="--seconds 60 --seed 7"
	@$(BIN)/python -m tests.trials.chaos $(ARGS)

.PHONY: conformance
conformance: install test-deps $(if $(filter external docker,$(TENURE_TEST_SERVICES)),,system-deps) ## Run the tests of the requirements; writes docs/requirements.md
	@$(BIN)/python -m pytest -m requirement --conformance -n 2 --dist loadfile $(ARGS)

.PHONY: test-pooled
test-pooled: install test-deps system-deps ## Run the integration tests through a connection pooler
	@TENURE_TEST_POOLED=1 $(BIN)/python -m pytest tests/integration tests/properties $(ARGS)

# The packages that are measured beside Tenure stay out of the environment that tests run in.
BENCH_BIN := .venv-bench/bin
.venv-bench/.installed: pyproject.toml requirements/bench.txt | install
	@test -x $(BENCH_BIN)/python || $(PYTHON) -m venv .venv-bench
	VIRTUAL_ENV=.venv-bench $(BIN)/uv pip sync --quiet --require-hashes requirements/bench.txt
	VIRTUAL_ENV=.venv-bench $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Only the bench compiles a C client. Where its library cannot be had, the bench says so and goes on.
.PHONY: bench-deps
bench-deps:
	@deploy/install-librabbitmq || true

.PHONY: bench
bench: .venv-bench/.installed system-deps bench-deps ## Measure: tasks/s, latency, relay, memory; ARGS="--only relay"
	@$(BENCH_BIN)/python -m bench $(ARGS)

.PHONY: bench-append-lock
bench-append-lock: install ## Measure what the one append lock costs, about four minutes
	@$(BIN)/python bench/append_lock.py $(ARGS)

.PHONY: check
check: install ## Lint, formatting, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

.PHONY: schemas
schemas: install ## Write the exported schemas, golden messages and tables of the docs anew
	@$(BIN)/python -m tests.support.exported

.PHONY: format
format: install ## Format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

# What the container image holds: everything but the private servers, and nothing for development.
IMAGE_EXTRAS := client executor sql coordinator relay cli

.PHONY: lock
lock: install ## Write the hashed requirement files anew; ARGS=--upgrade for newer versions
	$(LOCK) --all-extras --group dev $(ARGS) -o requirements/dev.txt pyproject.toml
	$(LOCK) --all-extras --group dev --group bench --constraints requirements/dev.txt -o requirements/bench.txt pyproject.toml
	$(LOCK) $(IMAGE_EXTRAS:%=--extra %) --constraints requirements/dev.txt -o requirements/image.txt pyproject.toml
	$(LOCK) $(ARGS) -o requirements/bootstrap.txt requirements/bootstrap.in

.PHONY: clean
clean: ## Remove the environment, caches and built files
	rm -rf $(VENV) .venv-bench dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `make` alone lists the targets. Everything runs in .venv, which set-up makes and keeps up to date.
PYTHON ?= python3
BIN := .venv/bin
SETUP := $(PYTHON) tools/setup.py
PYTEST := $(BIN)/python -m pytest
FAST_TESTS := tests/unit tests/properties tests/dags
# The longest file first, so that two processes end at about the same time; those without Spark are the shortest.
SPARK_TESTS := tests/faults tests/stream tests/services
# One after the other: a stack with several drivers needs both cores of a small machine for itself. The page is tried
# on the stack of tests/integration, after the file that needs a stack nobody has used.
STACK_TESTS := tests/topology tests/integration/test_stack.py tests/browser \
	$(filter-out %/test_stack.py,$(sort $(wildcard tests/integration/test_*.py)))
CODE := switchyard tools tests dags jobs plugins bench docker

.DEFAULT_GOAL := help
.PHONY: help setup run down test test-fast test-faults test-browser check format modules bench requirements cluster soak hour clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the environment: Java, .venv, jars, class archive
	@$(SETUP)

run: setup ## start broker, Airflow and a demo, and say when joined rows flow
	@$(BIN)/switchyard up

down: ## stop what run started
	@test ! -x $(BIN)/switchyard || $(BIN)/switchyard down

test: test-fast ## run all tests
	@$(PYTEST) -n 2 --dist loadfile --durations=15 $(SPARK_TESTS)
	@$(PYTEST) --durations=25 $(STACK_TESTS)

test-fast: setup-dev ## run the tests that need no Spark and no Airflow run
	@$(PYTEST) -n 2 --dist loadfile $(FAST_TESTS)

check: setup-dev ## lint, types, import rules, drift of the requirements and of docs/modules.md; edits nothing
	@$(BIN)/ruff check $(wildcard $(CODE))
	@$(BIN)/ruff format --check $(wildcard $(CODE))
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/requirements.py check
	@$(BIN)/python tools/module_map.py check

format: setup-dev ## format the code, repair what lint can repair, write docs/modules.md
	@$(BIN)/ruff check --fix $(wildcard $(CODE))
	@$(BIN)/ruff format $(wildcard $(CODE))
	@$(BIN)/python tools/module_map.py write

modules: setup-dev ## write docs/modules.md, the map of the modules, from their docstrings
	@$(BIN)/python tools/module_map.py write

test-faults: setup-dev ## break real processes, disks, topics and clocks, and check what follows; part of test
	@$(PYTEST) tests/faults

test-browser: setup-dev ## try the page in a real browser; part of test
	@$(PYTEST) tests/browser

soak: setup-dev ## random swaps, kills and load for MINUTES (60), then the audit; SEED repeats a run
	@$(BIN)/python -m tests.faults.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

hour: setup-dev ## an hour of the demo at once, then every join from earliest, away, and back when it has retired
	@$(BIN)/python -m tests.faults.hour

bench: setup ## run the measurements, about 40 minutes; ONLY="bulk swap" runs some, QUICK=1 all at small sizes
	@$(BIN)/python bench/all.py $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

cluster: ## start the production topology of docker-compose.yaml; needs Docker
	@$(PYTHON) docker/write_secrets.py
	@docker compose up --build --detach

requirements: setup ## compile the requirements; UPGRADE=1 takes the newest versions
	@$(BIN)/python tools/requirements.py compile

clean: down ## remove the environment, the cache and all data
	rm -rf .venv .cache .switchyard

.PHONY: setup-dev
setup-dev:
	@$(SETUP) --dev

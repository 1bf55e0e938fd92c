# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
# Needs Python >= 3.11, make and a package index; uses uv when it is there, pip otherwise.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?=
WORKERS ?= 4
TESTS ?= tests

# Only a missed deadline of a loaded machine is tried once more, and pytest's summary counts it;
# no failed assertion is.
LATE := --reruns 1 --only-rerun 'not within' --only-rerun 'does not answer'

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-prometheus soak check bench clean

help:
	@echo "make demo [EXIT=1]   64 simulated nodes break and are repaired; Ctrl-C stops everything"
	@echo "make test            all tests"
	@echo "make soak [SEEDS=1,2] minutes of random faults, kills and orders, judged at the end"
	@echo "make check           lint, format, types, import rules"
	@echo "make bench           the benchmarks: ratios, side by side in one run"
	@echo "make clean           remove the virtual environment and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/sickbay demo $(if $(EXIT),--exit)

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(LATE) -m 'not prometheus' $(TESTS)

# They go by Prometheus's own clock, and are not steady enough yet to decide about a change.
test-prometheus: $(STAMP)
	@$(BIN)/python -m pytest tests/sources -m prometheus

soak: $(STAMP)
	@SICKBAY_TEST_SOAK_SEEDS="$(or $(SEEDS),1)" $(BIN)/python -m pytest tests/fleet/test_soak.py

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Every target sets up what it needs. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The interpreter that makes .venv: the first of these that is new enough, or `make PYTHON=/path/to/python3.12 …`.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
WORKERS ?= 2
SEEDS ?= 20000
KILLS ?= 100

# What the build of the package reads; a change of any of them builds it again.
BUILD_INPUTS := pyproject.toml $(wildcard setup.py src/topics/*/*.pyx src/topics/*/*.pxi src/topics/*/*.pxd src/topics/*/*.h)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: $(VENV)/.built ## .venv with what running needs, from the lock file; builds the kernel

.PHONY: install-dev
install-dev: $(VENV)/.dev ## the same, and the tools for tests and checks

.PHONY: serve
serve: $(VENV)/.built ## the server on ./topics-data, http://127.0.0.1:4000
	$(BIN)/topics serve

.PHONY: test
test: $(VENV)/.dev ## all tests, warnings are errors (WORKERS=2)
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: check
check: $(VENV)/.dev ## ruff, mypy --strict, import contracts, tidy tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests $(wildcard benchmarks/*.py examples/*/*.py)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/tidy

.PHONY: format
format: $(VENV)/.dev ## let ruff put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(VENV)/.dev ## every benchmark, one after the other
	@for file in $(sort $(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python "$$file"; done

.PHONY: soak
soak: $(VENV)/.dev ## power-cut simulation over many seeds, and Spark's kills (SEEDS=20000 KILLS=100)
	$(BIN)/python -m tests.crash.soak --seeds $(SEEDS)
	$(BIN)/python -m tests.spark.soak --rounds $(KILLS)

.PHONY: demo
demo: $(VENV)/.dev ## a shop's events through server, Spark stream, history tables and a report, in ./topics-demo
	$(BIN)/python -m examples.shop

.PHONY: lock
lock: $(VENV)/.dev ## resolve pyproject.toml again and write requirements/*.txt
	$(call compile,base.txt)
	$(call compile,dev.txt,--extra dev --constraint requirements/base.txt)

.PHONY: clean
clean: ## remove .venv, build output and caches
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	rm -f src/topics/format/kernel.c src/topics/host/*_fast.c src/topics/*/*.so
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call compile,<file>,<options>): a lock file with hashes for every platform and no address of a registry. It holds
# the build requirements too, because the package is built inside .venv, not in an isolated environment.
define compile
$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	| $(BIN)/uv pip compile pyproject.toml - $(2) --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-annotate --no-header --output-file requirements/$(1)
endef

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo 'topics needs Python 3.11 or newer and found none on PATH.' \
		'Install one, or name it: make install PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'topics needs Python 3.11 or newer;' \
		"$(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments:" \
		'its venv or ensurepip module is missing. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: requirements/base.txt $(VENV)/.made
	$(PIP) install --quiet --require-hashes --requirement $<
	@touch $@

$(VENV)/.built: $(BUILD_INPUTS) $(VENV)/.base
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@$(BIN)/python -c 'import topics.format.kernel' 2>/dev/null || echo 'warning: the compiled kernel was not built' \
		'(no C compiler, or no xxhash.h); topics runs on its slower Python reference' >&2
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.built
	$(PIP) install --quiet --require-hashes --requirement $<
	@touch $@

# `make demo` and `make test` create the environment that they need. Both need the package index
# only, and no other network.
PYTHON ?= python3
VENV ?= .venv
# The torch release for the tests; pyproject.toml states the range.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean
.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.run: pyproject.toml
	@echo "Creating the environment in $(VENV); torch is large, so this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run tests/plugin/pyproject.toml
	$(BIN)/pip install --quiet --editable ".[test,lint]"
	$(BIN)/pip install --quiet --no-deps ./tests/plugin
	touch $@

demo: $(VENV)/.run  ## benchmark the embedded models on the embedded prompts
	$(BIN)/specbench run --drafter dflash,eagle3,eagle3-chain16,diffuspec,specdiff2,draft-model,prompt-lookup --suite smoke --limit 16 --max-new-tokens 64

test: $(VENV)/.dev  ## run every check that CI runs
	$(MAKE) lint
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/.dev  ## check style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## compare speed with other packages; print ratios, assert nothing
	$(BIN)/pip install --quiet --no-deps dflash==0.1.0
	$(BIN)/python -m tests.benchmarks

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

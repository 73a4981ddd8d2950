# Every target works on a fresh machine with Python 3.11+ and make: it makes .venv, installs, and pulls the default
# model where it needs one. PYTHON chooses the interpreter, ARGS goes to the command.
#   make serve ARGS="--port 9000"
#   make test ARGS="tests/unit -k admission"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install model serve test lint format types bench soak gpu-check clean

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Headrace needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ..." if v < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	touch $@

install: $(INSTALLED) ## Make the environment and install into it.

model: $(INSTALLED) ## Pull the default model unless it is cached.
	$(BIN)/headrace pull

serve: model ## Serve the default model; ARGS="MODEL --port 9000".
	$(BIN)/headrace serve $(ARGS)

test: model ## Run the tests that need no accelerator and less than a minute each.
	$(BIN)/python -m pytest -m "not soak and not perf" $(ARGS)

lint: $(INSTALLED) ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED) ## Rewrite to style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED) ## Check types.
	$(BIN)/mypy

bench: model ## Serve the default model on a free port and load it; ARGS go to `headrace bench`.
	$(BIN)/python benchmarks/serve_and_bench.py $(ARGS)

# pytest ends with 5 where no test has the marker.
soak: model ## Run the tests that take minutes.
	$(BIN)/python -m pytest -m soak --timeout=3600 $(ARGS) || test $$? -eq 5

gpu-check: model ## Run the tests that need an accelerator; without one they are skipped with a reason.
	$(BIN)/python -c 'import torch; print(torch.__version__, "-", torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device here")'
	$(BIN)/python -m pytest -m gpu -s $(ARGS) || test $$? -eq 5

clean: ## Remove caches and build outputs; .venv and the pulled model stay.
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

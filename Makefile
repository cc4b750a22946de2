# Everything sets itself up: `make run` and `make test` need Python 3.11+, make and a C compiler, nothing else.
PYTHON ?= python3
PORT ?= 8080
HOST ?= 127.0.0.1
DATA ?= data
VENV := .venv
BIN := $(VENV)/bin
export CALIBRATE_DATA_DIR ?= $(abspath $(DATA))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run test check format bench gpu-check image-check lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is needed (Debian: apt-get install python3-venv)."; exit 1; }
	@touch $@

$(VENV)/runtime.stamp: $(VENV)/python.stamp requirements.lock pyproject.toml
	@echo "installing the locked packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp requirements-dev.lock
	@echo "installing the locked development packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

run: $(VENV)/runtime.stamp ## Start the service; calibrate devices that have no constants (PORT=8080 DATA=data HOST=127.0.0.1)
	@$(BIN)/calibrate serve --host $(HOST) --port $(PORT) --calibrate-missing

test: $(VENV)/dev.stamp ## Everything that passes without a GPU
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)
	@$(MAKE) --no-print-directory check

check: $(VENV)/dev.stamp ## Lint, types, import contracts, migrations; reports every failure
	@$(BIN)/python tests/check.py

format: $(VENV)/dev.stamp ## Format the sources
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp ## Ratios against peers, interleaved in one run
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python tests/benchmarks/run.py $(ARGS)

gpu-check: ## On a GPU machine: compile, verify and measure everything; one JSON (numpy and CuPy only; PYTHON=..., ARGS="--out FILE")
	@PYTHONPATH=. $(PYTHON) tests/gpu/gpu_check.py $(ARGS)

image-check: ## Build the Dockerfile's steps without an engine (Debian, root: installs buildah, debootstrap, crun)
	@sh tests/image_check.sh

lock: $(VENV)/dev.stamp ## Resolve the requirement files anew (no host, URL or path ends up in them)
	@$(BIN)/python -m pip install --quiet uv
	@for extra in "requirements.lock" "requirements-dev.lock --extra dev -c requirements.lock" "requirements-cuda12.lock --extra cuda12 -c requirements.lock" "requirements-cuda13.lock --extra cuda13 -c requirements.lock"; do set -- $$extra; out=$$1; shift; \
	  UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate pyproject.toml requirements-build.in $$@ -o $$out || exit 1; done

clean: ## Remove the environment and caches (never the data folder)
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

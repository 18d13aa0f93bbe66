# make run, make test: all a new checkout needs is Python 3.11 or newer. Everything is installed
# into .venv, with the CUDA packages that fit the driver. Also: make lint, bench, docs, clean, wheels
# (make wheels ARCH="sm_80 sm_90a"), and on a GPU soak, drop-in (with torch and CuPy), and sanitize,
# which needs compute-sanitizer of the CUDA toolkit.

SHELL := /bin/bash

# Modules are compiled when they are first imported, and kept: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

ifndef PYTHON
PYTHON := $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
endif

# cu13, cu12 or none
GPU := $(if $(PYTHON),$(shell $(PYTHON) src/dxgemm/gpu/status.py))

ifeq ($(filter cu%,$(GPU)),)
# Kernels are compiled, and run on numba's simulator.
EXTRA := cu13
BENCH_ARGS ?= --smoke
EXAMPLE_SIZE := 50
EVERY := 1
else
EXTRA := $(GPU)-cublas
EXAMPLE_SIZE := 5000
# All tests take more than an hour there: `make test EVERY=1`.
EVERY := 47
endif

PYTEST_ARGS ?= --numprocesses auto --maxprocesses 8 --dist worksteal
BIN := .venv/bin
ARCH := sm_90a
INSTALLED := .venv/installed-$(EXTRA)
# Compilers of the oldest toolkit, beside the newest: tests build kernels with both.
OLDEST := $(if $(filter cu13%,$(EXTRA)),nvidia-nvvm==13.0.* nvidia-nvjitlink==13.0.*)

.PHONY: installed run test lint bench sanitize soak drop-in docs wheels clean

installed: $(INSTALLED)

run: $(INSTALLED)
	$(BIN)/dxgemm demo
	@mkdir -p build/example
	@$(BIN)/python -c 'import numpy; random = numpy.random.default_rng(0).random; \
		[numpy.save(f"build/example/{name}.npy", random(($(EXAMPLE_SIZE),) * 2, numpy.float32)) \
		for name in "AB"]'
	$(BIN)/dxgemm run build/example/A.npy build/example/B.npy -o build/example/C.npy

test: $(INSTALLED)
	$(BIN)/python -m pytest --every $(EVERY) $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python benchmarks/report.py --check
	$(BIN)/python docs/ladder/build.py --check

bench: $(INSTALLED)
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/report.py

sanitize: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python tools/sanitize.py $(SANITIZE_ARGS)

drop-in: $(INSTALLED)
	$(BIN)/python tools/drop_in.py $(DROP_IN_ARGS)

soak: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python tools/soak.py $(SOAK_ARGS)

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict

wheels: $(INSTALLED)
	rm -rf build/lib
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python tools/kernel_wheel.py $(ARCH:%=--arch %) --wheel-dir dist

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Most modules of the packages are never imported; Python compiles the others when they are.
$(INSTALLED): pyproject.toml
	$(if $(PYTHON),,$(error dxgemm needs Python 3.11 or newer, and none was found; \
		install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3))
	@echo "Installing dxgemm[$(EXTRA),dev] into .venv; GPU: $(GPU)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$(EXTRA),dev]'
	rm -rf .venv/oldest
	$(if $(OLDEST),$(BIN)/python -m pip install --quiet --no-compile --no-deps \
		--target .venv/oldest $(OLDEST:%='%'))
	touch $@

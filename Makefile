# make run, make test: all a new checkout needs is Python 3.11 or newer. Everything is installed
# into .venv; with a GPU, the CUDA packages that fit its driver. Also: lint, bench, clean.

SHELL := /bin/bash

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)

# cu13, cu12 or none. Without a GPU kernels still compile, and run on numba's simulator.
GPU := $(if $(PYTHON),$(shell $(PYTHON) src/dxgemm/_gpu.py))
EXTRA := $(if $(filter cu%,$(GPU)),$(GPU)-cublas,cu13)

BIN := .venv/bin
INSTALLED := .venv/installed-$(EXTRA)

ifeq ($(EXTRA),cu13)
EXAMPLE_M_N_K := 30 20 40
PYTEST_ARGS ?= --numprocesses auto --maxprocesses 8
SMOKE := --smoke
else
EXAMPLE_M_N_K := 3000 2000 4000
endif

.PHONY: run test lint bench clean

run: $(INSTALLED)
	$(BIN)/dxgemm demo
	$(BIN)/python docs/make_example.py build/example $(EXAMPLE_M_N_K)
	$(BIN)/dxgemm run build/example/A.npy build/example/B.npy -o build/example/C.npy

test: $(INSTALLED)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python benchmarks/report.py --check

bench: $(INSTALLED)
	$(BIN)/python benchmarks/run.py $(SMOKE)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	$(if $(PYTHON),,$(error dxgemm needs Python 3.11 or newer, and none was found; \
		install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3))
	@echo "Installing dxgemm[$(EXTRA)] into .venv (GPU packages found fitting: $(GPU))"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA),dev]'
	touch $@

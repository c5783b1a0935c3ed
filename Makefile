# make demo: install into .venv and run the main job on this machine
# make test: install what the tests need of Python and run them, with each real part (Slurm, PostgreSQL ...) that is there
# make services: install those parts, on Debian, as root; `make services-full` those of make test-full
# make test-full: all tests, with more examples and more kills; PART=slurm: that part alone (tests/parts.py names them)
# make gpu-check: everything that only a GPU can show, with a PYTHON that has torch for CUDA; nothing is downloaded
# make gpu-check-wheels: download what it needs besides, to be carried to a machine without a network

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
INPUTS := pyproject.toml constraints.txt
WHEELS ?= gpu-check-wheels
GPU_CHECK := gpu-check
GPU_CHECK_OPTIONS ?=
# One more than there are cores: tests wait much of their time, for programs and for schedulers.
WORKERS ?= $(shell expr $$(nproc) + 1)

PART ?= all

.PHONY: demo test test-full services services-full lint docs clean gpu-check

demo: $(VENV)/.demo
	$(VENV)/bin/hpcml run -m precision=fp32,tf32,amp seed=0,1,2 experiment=demo
	$(VENV)/bin/hpcml compare --by precision --experiment demo

test: $(VENV)/.test lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup --durations=10 --part=usual

test-full: $(VENV)/.test lint
	HPCML_TESTS=full $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup --durations=10 --part=$(PART)

services:
	tests/services.sh

services-full:
	tests/services.sh full

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	@$(VENV)/bin/python -m tests.code_lines

docs: $(VENV)/.test
	$(VENV)/bin/sphinx-build -nW --keep-going -b html docs docs/_build/html

gpu-check: export PYTHONPATH := $(abspath $(GPU_CHECK)/site):$(CURDIR)
gpu-check: $(wildcard $(WHEELS))
	$(if $<,$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $(GPU_CHECK)/site $</*.whl)
	$(PYTHON) benchmarks/gpu_check.py --out $(GPU_CHECK) $(GPU_CHECK_OPTIONS)

gpu-check-wheels:
	$(PYTHON) benchmarks/gpu_check_wheels.py $@

clean:
	rm -rf $(VENV) $(GPU_CHECK) docs/_build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hpcml needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python3 -m venv failed: on Debian, apt install python3-venv" >&2; rm -rf $(VENV); exit 2; }
	$(PIP) install --upgrade 'pip>=25.1'

$(VENV)/.demo: $(VENV)/bin/python $(INPUTS)
	$(PIP) install --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) install --constraint constraints.txt --group test --group lint --group docs
	@touch $@

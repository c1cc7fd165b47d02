# Each target makes .venv and installs by itself on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
# Where nothing can be installed, as on a GPU machine, what is there has to do.
PYTHON_GPU ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)

.PHONY: demo test test-slow test-gpu fuzz check docs format clean

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/byov demo

test: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: .venv/.installed
	$(BIN)/python -m pytest -m slow

# Malformed input over all commands, ARGS cases of each of seven kinds.
fuzz: .venv/.installed
	OMP_NUM_THREADS=1 BYOV_FUZZ=$(or $(ARGS),1500) $(BIN)/python -m pytest -n 2 tests/fuzz

test-gpu:
	PYTHONPATH=src $(PYTHON_GPU) tests/gpu/run.py $(ARGS)

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis

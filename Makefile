# Two commands on a fresh machine: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Real data sets, where they are; without them the tests on them skip with a reason.
ifneq ($(wildcard ../shared/data),)
export SETSQUARE_DATA ?= $(abspath ../shared/data)
endif

LOWEST := .venv-lowest
WHEEL := .venv-wheel
# What needs neither torch nor dask nor a browser nor the packages that are compared with.
CORE := tests/unit/auditing tests/unit/document tests/unit/estimators tests/unit/families tests/unit/glm tests/unit/projection \
	tests/unit/storage tests/unit/tables tests/properties --ignore=tests/unit/tables/test_frame.py

.PHONY: demo test test-lowest package lint bench bench-compare fuzz soak mutants docs paper clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.lint: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[lint]'
	@touch $@

demo: $(VENV)/.demo  ## train a model, correct it, show before and after
	$(BIN)/setsquare demo --html setsquare-report.html

test: $(VENV)/.test  ## everything but the experiments marked slow; one thread of BLAS for each of two processes
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" -q

test-lowest:  ## the core with the lowest versions that pyproject.toml allows (constraints-lowest.txt)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[demo,formula]' pytest hypothesis polars statsmodels fairlearn
	$(LOWEST)/bin/python -m pytest -q -m "not slow" $(CORE)

package: $(BIN)/python  ## wheel and sdist in dist/, checked, then used in an empty environment without the clone
	$(PIP) build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls $(CURDIR)/dist/*.whl)[demo]"
	cd $(WHEEL) && bin/setsquare demo --html report.html
	ls -l dist

lint: $(VENV)/.lint  ## ruff, mypy (strict on src and studies) and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test  ## speed as ratios against peers, each in one run: docs/benchmarks.md; then what the methods reach
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.fit_quality
	$(BIN)/python -m benchmarks.audit_calibration --quick
	$(BIN)/python -m benchmarks.small_batches
	$(BIN)/python -m benchmarks.two_groups --quick

bench-compare: $(VENV)/.test  ## is anything slower than in the commit before (or COMMIT=...)?
	$(BIN)/python -m benchmarks.compare_commits $(COMMIT)

fuzz: $(VENV)/.test  ## damaged tables, model files, formulas and command lines, for SECONDS (300)
	$(BIN)/python -m benchmarks.fuzz --seconds $(or $(SECONDS),300) --first $(or $(FIRST),0)

soak: $(VENV)/.test  ## fit, save, load and audit ROUNDS (5000) times in one process: memory, open files, statuses
	$(BIN)/python -m benchmarks.soak --rounds $(or $(ROUNDS),5000)

mutants: $(VENV)/.test  ## which of NUMBER (300) small changes of the code no test notices; SEED=1 repeats a sample
	nice -n 19 $(BIN)/python -m benchmarks.mutants --number $(or $(NUMBER),300) --seed $(or $(SEED),1)
	nice -n 19 $(BIN)/python -m benchmarks.mutants --seed $(or $(SEED),1) --wider

docs: $(VENV)/.docs  ## the site in docs/_build/html, without a warning; pages and examples run as they are written
	$(BIN)/python -m pytest -q tests/pipeline/test_docs.py
	rm -rf docs/api/generated
	$(BIN)/sphinx-build -W --keep-going -n -q -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

paper: $(VENV)/.test  ## every table and figure that can be run (hours; goes on where it was), and the slow tests
	$(BIN)/python -m studies --output studies/results
	$(BIN)/python -m studies --page --output studies/results
	$(BIN)/python -m pytest -m slow -q

clean:
	rm -rf $(VENV) $(LOWEST) $(WHEEL) .pytest_cache .mypy_cache .ruff_cache .hypothesis

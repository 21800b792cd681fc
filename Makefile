# Development targets. `make help` lists them. Needs Python 3.10-3.13 and make; everything else is installed into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV ?= .venv
JOBS ?= 3
TORCH := torch==2.13.0
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread for each test process: three of them keep two cores busy, as one often waits for a program that it started.
# Results do not depend on how many there are.
export OMP_NUM_THREADS := 1
# Where it is set, each process compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo test nightly check format lint types fix docs site gallery bench gpu versions build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install traincheck into it, editable, with everything for development

$(STAMP): pyproject.toml constraints.txt
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    test -x $(BIN)/python || "$$python" -m venv $(VENV) || exit 1; break; \
	  fi; \
	done; \
	test -x $(BIN)/python || { echo "no Python 3.10-3.13 found; name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(STAMP) ## record a good run, learn from it, check a run with a planted bug (about a minute)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

test: $(STAMP) ## run all tests but those that are long and rarely break
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'not nightly'

nightly: $(STAMP) ## run the tests that `make test` leaves out
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m nightly

check: $(STAMP) format lint types site test ## what CI runs: format, lint, types, site, tests

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

fix: $(STAMP) ## format, and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## write the generated pages and the outputs in README.md and docs/worked-example.md
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/readme_example.py

site: $(STAMP) ## build the site of the documentation in site/; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

gallery: $(STAMP) ## run the examples, write their outputs and the pictures of docs/gallery.md (3 minutes)
	$(BIN)/python docs/gallery.py

bench: $(STAMP) ## measure overhead and speed
	$(BIN)/python -m benchmarks

gpu: ## test and measure on a CUDA device, write docs/cuda.md (8 minutes; needs only python3)
	$(or $(PYTHON),python3) -m benchmarks.gpu

versions: ## run the tests with several versions of torch, write the table in docs/benchmark.md (hours; needs only python3)
	$(or $(PYTHON),python3) -m benchmarks.versions $(VERSIONS) $(if $(TESTS),--tests $(TESTS)) $(if $(WITHOUT),--without $(WITHOUT)) --jobs $(JOBS)

build: $(STAMP) ## make the wheel and the source archive in dist/
	$(BIN)/python -m build

clean: ## remove what the other targets made
	rm -rf $(VENV) .versions build dist site demo-output *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

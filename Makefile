# `make run` and `make test` make the environment themselves; `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help setup run test test-fast check format bench clean

help:
	@echo "make run        train the default preset and print the table (makes .venv first)"
	@echo "make test       the whole test suite (makes .venv first)"
	@echo "make test-fast  the suite without the slow tests"
	@echo "make check      format, lint, strict types, tests: what a change must pass"
	@echo "make setup      only make the environment"
	@echo "make format     rewrite the sources the way 'make check' wants them"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# byzfl asks for torchvision, which its rules do not need: only their cross-check test uses it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps byzfl
	@touch $(STAMP)

run: setup
	$(BIN)/ebs-cfl run

test: setup
	$(BIN)/python -m pytest

test-fast: setup
	$(BIN)/python -m pytest -m "not slow"

check: setup
	scripts/check

format: setup
	$(BIN)/ruff format src tests bench examples scripts/*.py scripts/screenshot
	$(BIN)/ruff check --fix src tests bench examples scripts/*.py scripts/screenshot

clean:
	rm -rf $(VENV) build dist src/*.egg-info

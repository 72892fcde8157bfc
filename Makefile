# make demo    train on the shipped corpus, evaluate, export, translate: some 15 minutes
# make test    the tests that take a few minutes
# make slow    the tests that train for longer
# make lint    style and format
# make clean   remove the environment and what tools have left

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint clean

demo: $(VENV)/installed
	$(BIN)/keras-transformer demo --run-dir runs/demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

slow: $(VENV)/installed
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Installed again whenever the requirements change.
$(VENV)/installed: setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed: make PYTHON=python3.11." \
	           "Received: $$($(PYTHON) --version 2>&1)" >&2; exit 2; }
	@echo "Installing into $(VENV): TensorFlow and the rest, about 3 GB, a few minutes" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

.PHONY: $(VENV)
$(VENV): $(VENV)/installed

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

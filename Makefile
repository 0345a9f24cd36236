# Two commands matter: `make demo` and `make test`. Both make .venv when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow test-flower lint benchmarks clean

demo: $(STAMP)
	@$(BIN)/dure run examples/digits.toml

test: $(STAMP)-dev lint
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-slow: $(STAMP)-dev
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

# Flower's pins exclude those of constraints.txt: its tests have an environment of their own.
test-flower: $(VENV)-flower/.installed
	@$(VENV)-flower/bin/python -m pytest tests/oracles/test_flower.py tests/oracles/test_flower_package.py

$(VENV)-flower/.installed: pyproject.toml requirements-flower.txt
	@test -d $(VENV)-flower || $(PYTHON) -m venv $(VENV)-flower
	@$(VENV)-flower/bin/python -m pip install --quiet --disable-pip-version-check -e . -r requirements-flower.txt
	@touch $@

lint: $(STAMP)-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

benchmarks: $(STAMP)-dev
	@$(BIN)/python benchmarks/rounds.py W1 W2 W3 W4 W5

$(STAMP): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP)-dev: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-flower .pytest_cache .mypy_cache .ruff_cache build dist

# Two commands: `make demo` and `make test`. Each makes .venv first where there is none.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/cpdrun sweep exp=digits_bits
	$(BIN)/cpdrun report digits_bits

test: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

clean:
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Rebuilt when what is compiled or declared changes; Python files are used in place.
SOURCES := pyproject.toml constraints.txt $(wildcard CMakeLists.txt kernels/custom_fp/CMakeLists.txt kernels/custom_fp/csrc/*)

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

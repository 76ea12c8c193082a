# Two commands: `make demo` and `make test`. Each makes .venv first where there is none.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/cpdrun search exp=digits_search --report

# One test on each core, of one thread; those that start whole sweeps and kill them watch the clock and run by themselves.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal --ignore tests/launch
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/launch

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

clean:
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Installed anew when what is compiled or declared changes, and when a file has come, gone or moved: Python files are
# used in place, but the installation knows each by its path.
SOURCES := pyproject.toml constraints.txt $(wildcard CMakeLists.txt kernels/custom_fp/CMakeLists.txt kernels/custom_fp/csrc/*)
FILES := $(shell find cpdrun kernels/custom_fp conf -name '*.py' | LC_ALL=C sort | cksum)
$(shell test "$(FILES)" = "$$(cat $(INSTALLED) 2>/dev/null)" || rm -f $(INSTALLED))

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	echo '$(FILES)' > $@

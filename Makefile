# Two commands: `make demo` and `make test`. Each makes .venv first where there is none.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO := .venv/.installed_to_run

# Installed anew when what is compiled or declared changes, and when a file has come, gone or moved: Python files are
# used in place, but the installation knows each by its path.
SOURCES := pyproject.toml constraints.txt $(wildcard CMakeLists.txt kernels/custom_fp/CMakeLists.txt kernels/custom_fp/csrc/*)
FILES := $(shell find cpdrun kernels/custom_fp conf -name '*.py' | LC_ALL=C sort | cksum)
$(shell for stamp in $(INSTALLED) $(DEMO); do test "$(FILES)" = "$$(cat $$stamp 2>/dev/null)" || rm -f $$stamp; done)

.PHONY: demo test test-rest test-launch lint wheel docs notebooks clean

demo: $(or $(wildcard $(INSTALLED)),$(DEMO))
	$(BIN)/cpdrun search exp=digits_search --report

# Side by side, for the tests of the launcher mostly wait: for a signal to be obeyed, for the patience with a rank to
# end. The others are one on each core, of one thread. What the launcher's tests say comes in one piece, at their end.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-launch test-rest

test-rest: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal --ignore tests/launch

test-launch: $(INSTALLED)
	@said=$$($(BIN)/python -m pytest -n 2 --dist loadfile tests/launch 2>&1); ended=$$?; echo "$$said"; exit $$ended

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# One for other machines of this Python, in dist/: no compiler is needed there. What `make` has compiled is used.
wheel: $(INSTALLED)
	$(BIN)/python scripts/wheel.py dist

# build/docs/index.html; needs no network, and ends at the first warning: a link or anchor that leads nowhere is one.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -b html . build/docs

# Executes those of docs/notebooks anew, outputs and all, one thread a kernel as in the tests.
notebooks: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/notebooks.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

# What builds stands in .venv, not in a folder of pip's own for each build: so only what changed is compiled again.
BUILD := 'scikit-build-core>=0.10' 'nanobind>=2.4' cmake ninja

define install
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(BUILD)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '$(1)'
	echo '$(FILES)' > $@
endef

$(DEMO): $(SOURCES)
	@echo "Installing into .venv: torch above all, 6 GB; minutes, and little is printed"
	$(call install,.)

$(INSTALLED): $(SOURCES)
	@echo "Installing into .venv: torch and the tools of the tests, 7 GB; minutes, and little is printed"
	$(call install,.[dev])

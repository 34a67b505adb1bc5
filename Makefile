# From a fresh clone, with Python 3.11 or later, make and git: make demo, make test.

PYTHON ?= python3
WORKERS ?= 3
MINUTES ?= 60
TRY ?= oldest newest pipx

VENV := .venv
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes of Python, which need not all compile the same modules.
PYTEST = scripts/get-servers $(BIN)/python && \
	$(BIN)/python -m compileall -q memctl tests benchmarks tools && \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal
REAL := $(wildcard tests/interop*)

.PHONY: demo test trust interop dist-test soak fuzz lint format docs screens picture clean

demo: $(VENV)/.package
	@DEMO_PATH="$(CURDIR)/$(BIN)" PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh

# pytest last: its closing line closes the output.
test: lint
	@$(PYTEST) -m "not slow" $(addprefix --ignore ,$(REAL))

# The tests marked slow: those that need a third of a second of CPU time or more, kills, servers that
# die, live agents, fuzzing, properties, very large messages, and most of the conformance suite.
# SHARD=0/8 runs the first of eight parts.
trust: $(VENV)/.dev
	@$(BIN)/python scripts/interop "$(PYTHON)" interop
	@$(PYTEST) -m slow $(if $(SHARD),--shard $(SHARD)) $(addprefix --ignore ,$(REAL))

# The real frameworks on both ends, each in an environment of its own, made once: see
# requirements/interop.toml.
interop: $(VENV)/.dev
	@$(BIN)/python scripts/interop "$(PYTHON)"
	@$(PYTEST) $(filter-out tests/interop_ray,$(REAL))
	@$(BIN)/pytest tests/interop_ray # one cluster, whose nodes take all processors

# Builds memctl, and tries what was built with the oldest and the newest version of what it needs.
dist-test:
	@scripts/dist-test "$(PYTHON)" $(TRY)

# Kills migrations for so many minutes, SEED=n always in the same ways; SIGNALS=INT,TERM,HUP stops
# them otherwise; FAULTS=all fails each call of each command instead; see tests/trust/soak.py.
soak: $(VENV)/.dev
	@scripts/get-servers $(BIN)/python
	@$(BIN)/python -m tests.trust.soak --minutes $(MINUTES) --workers $(WORKERS) \
		$(if $(SEED),--seed $(SEED)) \
		$(if $(PAIR),--pair $(PAIR)) $(if $(SIGNALS),--signals $(SIGNALS)) \
		$(if $(FAULTS),--faults $(FAULTS))

# Tries commands on mutated stores and settings for so many minutes; see tests/fuzz/__main__.py.
fuzz: $(VENV)/.dev
	@scripts/get-servers $(BIN)/python
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --workers $(WORKERS) \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(MUTATORS),--mutators $(MUTATORS)) $(if $(SCENES),--scenes $(SCENES))

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -n auto
	@$(BIN)/lint-imports

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# What the documentation takes from the code.
docs: $(VENV)/.dev
	@$(BIN)/python tools/generate.py

# The screens and pages that tests compare with: read what has changed before you commit it.
screens: $(VENV)/.dev
	@MEMCTL_SCREENS=write $(BIN)/pytest -k screens tests/terminal tests/report tests/browser

# docs/report.png and docs/page.png: look at them before you commit them.
picture: $(VENV)/.dev
	@$(BIN)/python -m tools.picture

clean:
	rm -rf $(VENV) .interop .interop2 .interop-* build dist .cache .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# memctl alone, which the demo needs.
$(VENV)/.package: pyproject.toml requirements/dev.txt
	@scripts/make-venv "$(PYTHON)" $(VENV) requirements/dev.txt -e .
	@touch $@

# All its drivers, and the tools that pyproject.toml lists as its group "dev".  uv installs them in
# a third of the time that pip takes; pip does where uv fails: uv does not read the settings of pip.
# The pip of Python 3.11 does not know dependency groups.
$(VENV)/.dev: DEV = -c requirements/dev.txt -e '.[all]' --group dev
$(VENV)/.dev: $(VENV)/.package
	@echo "Installing all drivers and the tools for development into $(VENV), for about a minute"
	@$(BIN)/python -m pip install -q -c requirements/dev.txt --upgrade pip uv
	@$(BIN)/uv pip install -q --python $(BIN)/python $(DEV) || \
		$(BIN)/python -m pip install -q $(DEV)
	@touch $@

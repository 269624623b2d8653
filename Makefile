# Every target works from a fresh clone: it installs what it needs into .venv, or into the virtual
# environment that is active. `make help` lists them.

VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
PYTHON ?= python3
INSTALLED := $(VENV)/.kvmesh-installed
# More arguments for the command that a target runs: make serve ARGS="--nodes 3"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo serve test test-large compose-test lint kernels-static protos metrics dashboards load-test sim-large bench soak soak-node clean

help: ## Show what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' \
		| expand -t 18

install: $(INSTALLED) ## Create the virtual environment and install kvmesh with all it needs

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvmesh needs Python 3.11 or newer: make install PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "No venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "Installing kvmesh into $(VENV) (once; a few minutes, most of it torch)"
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: ## Ask a real model twice through router and two nodes, and see the prefix cache work
	@start=$$(date +%s) && $(MAKE) --no-print-directory install \
		&& $(BIN)/kvmesh demo --install-seconds $$(($$(date +%s) - start)) $(ARGS)

serve: install ## Serve the model on http://127.0.0.1:8000/v1 until Ctrl-C
	$(BIN)/kvmesh serve $(ARGS)

test: install ## Run all tests, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-large: install ## Run the tests that download a second real model
	$(BIN)/python -m pytest -m large $(ARGS)

compose-test: install ## Build and start compose.yaml, and test the fleet: scale, kill, restart
	compose/test.sh $(BIN)/python $(ARGS)

lint: install ## Check style, types, import rules, stubs and contract, metrics' table and dashboards
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check
	$(BIN)/python -m kvmesh.cli.metrics_table --check
	$(BIN)/python -m compose.grafana.build --check

kernels-static: install ## Compile the Triton kernels for four chips and compare with the reviewed table
	$(BIN)/python -m kernels.triton.static $(ARGS)

protos: install ## Regenerate the stubs in kvmesh/v1 from protos/
	$(BIN)/python protos/generate.py $(ARGS)

load-test: install ## Load a fleet of its own for a minute, and write a report with plots
	$(BIN)/kvmesh load $(ARGS)

metrics: install ## Write docs/metrics.md from what the code registers
	$(BIN)/python -m kvmesh.cli.metrics_table

dashboards: install ## Write Grafana's dashboards from compose/grafana
	$(BIN)/python -m compose.grafana.build

sim-large: install ## Simulate 2,000 nodes and 100,000 requests of TRACE=FILE, and say what that took
	PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/kvmesh sim --trace $(TRACE) \
		--nodes 2000 --requests 100000 --blocks 500 --profile accelerator --policy prefix-aware \
		--max-num-batched-tokens 8192 $(ARGS)

bench: install ## Compare memory, caching and routing with other ways to serve; QUICK=1: in three minutes
	$(BIN)/kvmesh bench all $(if $(QUICK),--quick) $(ARGS)

soak: install ## 20 minutes of load on three nodes, one of which fails every 10 s: nobody may notice
	$(BIN)/kvmesh bench failover $(ARGS)

soak-node: install ## Send 10,000 requests with random ends to a node: nothing may leak
	$(BIN)/kvmesh bench soak $(ARGS)

clean: ## Remove caches and build output, but not the virtual environment
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -exec rm -rf {} +

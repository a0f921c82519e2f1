# Everything starts here. `make demo` shows the product at work; `make test` proves it. Both set up what they need.

PYTHON := .venv/bin/python
SETUP := .venv/.locked-$(shell sha256sum requirements/dev.txt | cut -c1-16)

.DEFAULT_GOAL := help
.PHONY: help setup test lint demo cluster-up cluster-down images generate lock clean

help: ## This list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(SETUP) ## The development environment in .venv, from requirements/dev.txt

$(SETUP):
	@./tools/setup
	@touch $@

test: $(SETUP) ## All tests, from nothing; TIERS=unit,apiserver narrows them
	@$(PYTHON) -m tests.tiers

lint: $(SETUP) ## ruff, mypy strict, import contracts
	@$(PYTHON) -m tests.tiers lint

demo: $(SETUP) ## The whole story on this machine, about five minutes once built; KEEP=1 leaves it up, CONTEXT=name uses a cluster of yours
	@PYTHONPATH=operator $(PYTHON) -m demo

cluster-up: $(SETUP) ## A Kubernetes node on this machine
	@$(PYTHON) -m tests.localcluster up --size node

cluster-down: $(SETUP) ## Take it down again
	@$(PYTHON) -m tests.localcluster down

images: $(SETUP) ## Build the images for tests and demo: operator, sglang-cpu, prometheus
	@$(PYTHON) -m tests.localcluster.images build

generate: $(SETUP) ## The CRD and docs/fields.md from the types
	@PYTHONPATH=operator $(PYTHON) -m specserver.api.crd > crds/specserver.io_speculativeservers.yaml
	@cp crds/specserver.io_speculativeservers.yaml charts/specserver/files/crd.yaml
	@PYTHONPATH=operator $(PYTHON) tools/reference.py > docs/fields.md

lock: $(SETUP) ## Pin the dependencies of the project and of the images anew
	@$(PYTHON) tools/lock.py

clean: ## Remove the development environment; caches outside the clone stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

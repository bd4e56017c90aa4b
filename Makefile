# The project's verbs, the same here and in CI. `make` alone lists them.
# Nothing is assumed but Python 3.11 with venv, make and git: `setup` makes .venv, and every verb that needs it asks for it.

VENV  := .venv/bin
PY    := $(VENV)/python
KILLS ?= 200
# `make e2e SCENARIOS="e2e and gate"` runs those that CI runs.
SCENARIOS ?= e2e
QUICKSTART_OUT := out/quickstart
EXAMPLES := examples/quickstart

# One thread for each test process: pytest-xdist runs two of them, and torch would start two threads in each.
FAST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m "not ray and not model and not cluster and not e2e"
# Each of the two has a control plane of its own; the first run on a machine builds it from Go modules (ten minutes).
CLUSTER := $(PY) -m pytest -n 2 -m cluster
# Each file's tests share a Ray cluster. While one of them waits for its processes to start, another can go on.
SLOW := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "ray or model"

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-fast test-cluster e2e images lint format crds crash mutants bench docs

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with all that is needed (quick when nothing changed)
	@scripts/setup

quickstart: setup ## train a private adapter on two local workers, and say how to load it
	@if [ -e $(QUICKSTART_OUT) ]; then \
	  kept=$(QUICKSTART_OUT).$$(date +%Y%m%d-%H%M%S); \
	  mv $(QUICKSTART_OUT) $$kept; \
	  echo "an earlier run's ledger and adapter are kept in $$kept"; \
	fi
	$(PY) $(EXAMPLES)/make_data.py
	$(VENV)/tensafe run $(EXAMPLES)/job.yaml --output-dir $(QUICKSTART_OUT)

test: setup lint ## lint, then every test: the fast ones first, then a real API server, then Ray and a real model
	$(FAST)
	$(CLUSTER)
	$(SLOW)

test-fast: setup ## the tests that need neither a cluster nor Ray nor a real model
	$(FAST)

test-cluster: setup ## the tests on a real API server
	$(CLUSTER)

e2e: setup ## the scenarios on real pods: a cluster of this machine alone, as root (or on KUBECONFIG's)
	TENSAFE_E2E_REQUIRED=1 $(PY) -m pytest tests/e2e -v -m "$(SCENARIOS)"

images: ## build the images of operator and trainer, with docker, podman or buildah
	scripts/images

lint: setup ## check style, types, layers, and that the generated CRDs are current
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(PY) -m tensafe_api.crd --check

format: setup ## bring the code into the project's form
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

crds: setup ## write crds/*.yaml from the models in tensafe_api
	$(PY) -m tensafe_api.crd

crash: setup ## kill -9 at random moments, KILLS=200 times: epsilon must never fall
	TENSAFE_KILLS=$(KILLS) OMP_NUM_THREADS=1 $(PY) -m pytest tests/trainer_image/training/test_kills.py --timeout 0

mutants: setup ## break the privacy code on purpose, once for each known mistake: a named test must turn red
	$(PY) tests/mutants/run.py

bench: setup ## measure beside Opacus (needs SST-2: see benchmarks/README.md) and beside KubeRay's operator (needs Go)
	$(PY) -m benchmarks.accuracy
	$(PY) -m benchmarks.step
	$(PY) -m benchmarks.operator

docs: setup ## write the pages that are generated from the code
	$(PY) docs/generate.py

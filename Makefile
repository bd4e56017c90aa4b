# The project's verbs, the same here and in continuous integration. `make` alone lists them.
# Only Python 3.11 with venv, make and git are assumed: `setup` creates .venv, and every verb that needs it runs it first.

VENV  := .venv/bin
PY    := $(VENV)/python
# `make crash SHORT=1`, and so for quickstart, bench, gpu and package: the same command in a minute or two, which shows
# that it runs. Its figures mean nothing, and a package has no images.
SHORT ?=
KILLS ?= $(if $(SHORT),3,200)
# `make e2e SCENARIOS="e2e and gate"` runs those that continuous integration runs.
SCENARIOS ?= e2e
# `make test COVERAGE=1` prints the branch coverage of the packages that carry a privacy claim, and
# `make test-all COVERAGE=1` after it that of both commands together.
COVERAGE ?=
QUICKSTART_OUT := out/quickstart
EXAMPLES := examples/quickstart

# Without its cache of bytecode, each test process would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest
# One thread for each test process: pytest-xdist runs two of them, and torch would start two threads in each.
FAST := $(PYTEST) -n 2 --dist worksteal -m "not (slow or ray or model or cluster or nightly or e2e)"
SLOW := $(PYTEST) -n 2 --dist worksteal -m "slow and not (ray or model or cluster or nightly or e2e)"
# Ray's own processes fill both cores, so these tests run one after the other.
SMOKE := $(PYTEST) -m "smoke and ray" tests/trainer_image/distributed
CLUSTER_SMOKE := $(PYTEST) -n 2 --dist worksteal -m "smoke and cluster" tests/operator
# Each of the two processes has its own control plane. Go builds it on the first run, in about six minutes.
CLUSTER := $(PYTEST) -n 2 --dist worksteal -m "cluster and not nightly"
# What takes minutes and rarely changes: most of these tests need a program that Go builds for minutes.
NIGHTLY := $(PYTEST) -n 2 --dist worksteal -m nightly
# The tests of one file share a Ray cluster. While one file waits for its processes to start, another one runs.
RAY := $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "(ray or model) and not (smoke or nightly)"
ifneq ($(COVERAGE),)
MEASURED := --cov --cov-branch --cov-report=term:skip-covered
FAST += $(MEASURED)
SLOW += $(MEASURED) --cov-append
CLUSTER += $(MEASURED) --cov-append
NIGHTLY += $(MEASURED) --cov-append
RAY += $(MEASURED) --cov-append
endif

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-fast test-all test-cluster test-nightly e2e images package lint format crds docs docs-site \
  crash mutants bench bench-noise bench-accuracy bench-step bench-kernels bench-operator gpu

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv with everything that is needed (quick when nothing changed)
	@scripts/setup

quickstart: setup ## train a private adapter on two local workers, and print how to load it
	@if [ -e $(QUICKSTART_OUT) ]; then \
	  kept=$(QUICKSTART_OUT).$$(date +%Y%m%d-%H%M%S); \
	  mv $(QUICKSTART_OUT) $$kept; \
	  if [ -e $(QUICKSTART_OUT).private ]; then mv $(QUICKSTART_OUT).private $$kept.private; fi; \
	  echo "the ledger and adapter of an earlier run are kept in $$kept"; \
	fi
	$(PY) $(EXAMPLES)/make_data.py
	$(VENV)/tensafe run $(EXAMPLES)/job.yaml --output-dir $(QUICKSTART_OUT) $(if $(SHORT),--set spec.training.steps=2)

test: setup lint ## lint, the fast tests, one training on Ray, and some tests on an API server if it is built
	$(FAST)
	$(SMOKE)
	@if $(PY) -m e2e.platform built; then \
	  set -x; $(CLUSTER_SMOKE); \
	else \
	  echo "The API server is not built on this machine, so its tests did not run: \`make test-all\` builds it."; \
	fi

test-fast: setup ## the quick tests that need neither an API server nor Ray nor a pretrained model
	$(FAST)

test-all: setup ## what `make test` leaves out: slow tests, and all on a real API server, with Ray, with a pretrained model
	$(SLOW)
	$(CLUSTER)
	$(RAY)

test-cluster: setup ## all tests on a real API server
	$(CLUSTER)

test-nightly: setup ## long tests: with Argo CD, Prometheus, Grafana, a private Sigstore, a release, and two guides on Ray
	$(NIGHTLY)

e2e: setup ## the scenarios on real pods: in a cluster on this machine (as root), or in the one that KUBECONFIG names
	TENSAFE_E2E_REQUIRED=1 $(PY) -m pytest e2e -v -m "$(SCENARIOS)"

images: ## build the images of operator and trainer, with docker, podman or buildah
	scripts/images

package: setup ## write a release into out/package: chart, wheel, CRDs, images, bills of materials, checksums
	SHORT=$(SHORT) scripts/package

lint: setup ## check style, spelling, types, layers, and that the generated CRDs are current
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	git ls-files -z | xargs -0 $(VENV)/codespell
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(PY) -m tensafe_api.schema.crd --check

format: setup ## format the code
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

crds: setup ## write crds/*.yaml from the models in tensafe_api
	$(PY) -m tensafe_api.schema.crd

docs: setup ## write the reference pages that are generated from the code, and the chart's README
	$(PY) docs/generate.py
	$(PY) -m docs.chart_readme

docs-site: setup ## build the documentation site into out/site; a dead link fails
	@scripts/setup docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build

crash: setup ## kill the trainer at random moments, KILLS=200 times: epsilon must never fall
	TENSAFE_KILLS=$(KILLS) $(PYTEST) tests/trainer_image/training/test_kills.py --timeout 0

mutants: setup ## break the privacy code on purpose, in about sixty ways: a named test must fail
	$(PY) -u tests/mutants/run.py

bench: bench-noise bench-accuracy bench-step bench-kernels bench-operator ## compare with Opacus (needs SST-2: see benchmarks/README.md) and with KubeRay's operator (needs Go)

# Without --jobs they run one after the other, as times must be measured. CI runs two short forms beside each other, so
# these have one thread.
bench-noise: setup
	$(PY) -m benchmarks.noise $(if $(SHORT),--settings 1)

bench-accuracy: setup
	$(PY) -m benchmarks.accuracy $(if $(SHORT),--seeds 1 --epsilons 8 --steps 2 --rows 600)

bench-step: setup
	$(PY) -m benchmarks.step $(if $(SHORT),--rounds 1 --repeats 1 --threads 1)

bench-kernels: setup
	$(PY) -m benchmarks.kernels $(if $(SHORT),--rows 1 3 --precisions fp32 bf16 --repeats 1 --threads 1)

bench-operator: setup
	$(PY) -m benchmarks.operator $(if $(SHORT),--jobs 10 --parts memory burst kuberay)

gpu: setup ## what a private step costs on a GPU: exactness, time, memory, and the peers (says so where there is none)
	$(PY) -m benchmarks.gpu $(if $(SHORT),--short)

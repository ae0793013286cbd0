# kvtrace: `make demo` and `make test` do all their set-up themselves.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
export HF_HUB_OFFLINE := 1
export VLLM_CPU_KVCACHE_SPACE := 2

.PHONY: setup demo demo-harm picture test incidents quality-simulations same-as checkpoint-cases capacity-cases scale-matrix fuzz faults test-browser check vllm-env test-vllm test-vllm-full test-vllm-v2 test-vllm-versions test-vllm-sources test-remedies test-formats bench bench-capture bench-attention bench-harm gpu-check sample clean

setup: .venv/.stamp  ## .venv with kvtrace, its analysis extra and the tools for development

.venv/.stamp: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint .ci/constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint .ci/constraints.txt --editable '.[analysis,report,dev]'
	$(BIN)/python -m kvtrace.profile.warm_up
	$(BIN)/python -m kvtrace.report.html.vega
	touch $@

test: setup  ## all tests that need neither a GPU nor vLLM
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not vllm and not vllm_full and not gpu and not browser'

test-browser: setup  ## the HTML report in Debian's chromium; its screenshots are left in build/browser
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)
	$(BIN)/python -m pytest -m browser tests/browser

check: setup  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

incidents: setup  ## faults planted in real traces, and what the diagnosis says; SEED=… pins them, HARDEST=1: the faintest; FEW=…, DRAWS=…: how many with right answers
	PYTHONPATH=tests $(BIN)/python -m incidents $(if $(SEED),--seed $(SEED)) $(if $(HARDEST),--hardest) $(if $(FEW),--few $(FEW)) $(if $(DRAWS),--draws $(DRAWS))

quality-simulations: setup  ## how often paired intervals cover, and what looking again costs; DRAWS=…
	$(BIN)/python tests/quality/simulate.py $(if $(DRAWS),--draws $(DRAWS))

checkpoint-cases: setup  ## checkpoints and traces as people reported them: case → right answer, and whether it is given
	PYTHONPATH=tests $(BIN)/python -m checkpoint_cases

same-as: setup  ## all that the command line says, against BASE=<commit>, but for tests/same_as/differences.toml; ONLY=…
	PYTHONPATH=tests $(BIN)/python -m same_as $(BASE) $(if $(ONLY),--only '$(ONLY)')

VLLM_PYTHON := .venv-vllm/bin/python
SOURCES := 0.33.0
MODEL := .cache/smollm2-135m

vllm-env: .venv-vllm/.stamp $(MODEL)/config.json  ## .venv-vllm with real vLLM for the CPU, and a real small model

.venv-vllm/.stamp: tests/vllm/make_env.py .ci/constraints-vllm.txt pyproject.toml
	$(PYTHON) tests/vllm/make_env.py .venv-vllm

$(MODEL)/config.json: samples/make_model.py .venv-vllm/.stamp
	$(VLLM_PYTHON) samples/make_model.py $(MODEL)

fuzz: setup  ## files from strangers, their checksums made anew, before every command; SEED=… pins them, CASES=… FRESH=…
	PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) $(if $(FRESH),--fresh $(FRESH))

faults: setup vllm-env  ## damaged traces, forged profiles, killed writers and workers, broken disks; a table of what was shown; SEED=… pins them
	PYTHONPATH=tests $(BIN)/python -m faults $(if $(SEED),--seed $(SEED))
	PYTHONPATH=tests $(VLLM_PYTHON) -m faults.in_vllm --model $(CURDIR)/$(MODEL) $(if $(SEED),--seed $(SEED))

test-vllm: setup vllm-env  ## the capture plug-in inside a real vLLM (CPU), some 20 minutes on two cores
	KVTRACE_TEST_MODEL=$(CURDIR)/$(MODEL) $(VLLM_PYTHON) -m pytest -m 'vllm and not vllm_full' tests/vllm

test-vllm-full: setup vllm-env  ## the same and the long ones
	KVTRACE_TEST_MODEL=$(CURDIR)/$(MODEL) $(VLLM_PYTHON) -m pytest -m 'vllm or vllm_full' tests/vllm

test-vllm-v2: setup vllm-env  ## vLLM's V2 model runner, Triton's kernels interpreted, against V1 bit for bit; asynchronous scheduling too
	KVTRACE_TEST_MODEL=$(CURDIR)/$(MODEL) $(VLLM_PYTHON) -m pytest -m 'vllm or vllm_full' tests/vllm/v2

test-remedies: setup vllm-env  ## incidents, and the report's steps run as printed, in a real vLLM with an FP8 cache; by hand
	KVTRACE_TEST_MODEL=$(CURDIR)/$(MODEL) $(VLLM_PYTHON) -m pytest -s -m 'vllm or vllm_full' tests/vllm/test_remedies.py

capacity-cases: vllm-env  ## tests/capacity/{plans,pages}.json again: what vLLM's own planning gives each case, without an engine
	PYTHONPATH=tests $(VLLM_PYTHON) tests/vllm/write_capacity.py

scale-matrix: vllm-env  ## tests/scales/matrix.json again: what vLLM's own loader gives each family from each producer
	PYTHONPATH=tests $(VLLM_PYTHON) tests/vllm/write_scale_matrix.py

test-vllm-versions: setup vllm-env test-vllm-sources  ## a short capture on the CPU build of each vLLM from 0.28 on, and 0.33's sources; VERSIONS=… FORCE=1
	$(VLLM_PYTHON) tests/vllm/versions/run_versions.py $(MODEL) $(VERSIONS) $(if $(FORCE),--force)

test-vllm-sources: setup vllm-env  ## the sources of vLLM 0.33 (its wheel is unpacked, not installed) and of the installed release: do they have what the plug-in relies on?
	set -o pipefail; installed=$$($(VLLM_PYTHON) -c "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])") && \
	unpacked=$$($(VLLM_PYTHON) tests/vllm/versions/unpack_sources.py $(SOURCES) | paste -sd:) && \
	VLLM_SOURCES="$$installed:$$unpacked" $(BIN)/python -m pytest tests/capture/test_vllm_sources.py

test-formats: vllm-env  ## cache formats against vLLM's own kernels in Triton's interpreter; VLLM_0_33=… a folder of 0.33's sources, for octave
	PYTHONPATH=tests $(VLLM_PYTHON) -m pytest tests/vllm_formats

SAMPLE := samples/smollm2-135m.kvtrace
SCALES := $(addprefix --scales samples/scales/,chat-per-tensor chat-per-head all-per-head halved)
WITH_QUERIES := samples/smollm2-135m-queries.kvtrace
CHOICES := $(addprefix --scales samples/scales/,all-per-head halved) \
	$(addprefix --cache-dtype ,int8_per_token_head turboquant_k8v4 int4_per_token_head)

demo: setup  ## the report on the bundled real sample, under four scale artifacts, as text and as a page
	@mkdir -p build
	@$(BIN)/kvtrace report $(SAMPLE) $(SCALES) --page build/demo.html --force
	@echo "The same with charts, in a browser: $(CURDIR)/build/demo.html"

demo-harm: setup  ## the same on a small real trace with queries, and cache formats too: what each does to attention
	@mkdir -p build
	@$(BIN)/kvtrace report $(WITH_QUERIES) $(CHOICES) --page build/demo-harm.html --force
	@echo "The same with charts, in a browser: $(CURDIR)/build/demo-harm.html"

picture: test-browser  ## docs/report.png, the README's picture, from what the browser test saw
	cp build/browser/readme.png docs/report.png

sample: setup vllm-env  ## make samples/ again: model, traffic through vLLM, artifacts
	$(BIN)/python samples/make_sample.py

BENCH_TRACE := .cache/bench.kvtrace

bench: .venv-bench/.stamp $(BENCH_TRACE)  ## speed on a real 560 MB trace, as ratios against named alternatives
	.venv-bench/bin/python tests/bench/bench_replay.py --trace $(BENCH_TRACE)
	.venv-bench/bin/python tests/bench/bench_formats.py
	.venv-bench/bin/python tests/bench/bench_calibrate.py --trace $(BENCH_TRACE)
	.venv-bench/bin/python tests/bench/rank_large_run.py
	.venv-bench/bin/python tests/bench/report_size.py
	.venv-bench/bin/python tests/bench/replay_size.py
	.venv-bench/bin/python tests/bench/cold_commands.py
	.venv-bench/bin/python tests/bench/validation_cost.py

.venv-bench/.stamp: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade pip
	.venv-bench/bin/python -m pip install --quiet --constraint .ci/constraints.txt torch
	.venv-bench/bin/python -m pip install --quiet --constraint .ci/constraints.txt --editable '.[analysis,report,bench,dev]'
	touch $@

$(BENCH_TRACE): | vllm-env
	$(VLLM_PYTHON) samples/capture_sample.py $(MODEL) $@ 2

bench-capture: vllm-env  ## what capture costs a real engine, switched on and off in turn; its memory over a long run
	@mkdir -p build
	$(VLLM_PYTHON) tests/bench/bench_capture.py --model $(MODEL) 2> build/bench-capture.log
	$(VLLM_PYTHON) tests/bench/capture_memory.py

bench-attention: setup  ## attention replayed: seconds a candidate on one thread, and the most memory
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_attention.py

HARM_PROBES := .cache/harm-probes.kvtrace

bench-harm: .venv-bench/.stamp $(HARM_PROBES)  ## harm of some forty caches beside the loss that each measurably causes; by hand
	.venv-bench/bin/python tests/bench/bench_harm.py $(MODEL) $(HARM_PROBES) --require

$(HARM_PROBES): | vllm-env
	$(VLLM_PYTHON) samples/capture_queries.py $(MODEL) $@ probe

gpu-check: setup  ## on a machine with a GPU: equality with the CPU, ns a value, share of memory bandwidth
	$(BIN)/python tests/bench/gpu_check.py
	$(BIN)/python -m pytest -m gpu tests

clean:
	rm -rf .venv .venv-vllm .venv-bench .cache build dist

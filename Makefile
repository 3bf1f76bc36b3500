# `make` prints the targets. ARGS goes to the command: make up ARGS="MODEL.gguf --dry-run"
.DEFAULT_GOAL := help
.PHONY: help up test gpu-check check fix docs lock clean setup
BIN := .venv/bin
ARGS ?=

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name does; do \
		printf '  make %-9s %s\n' "$$name" "$$does"; done

up: ## set up what is missing and serve a model on 127.0.0.1:8080; Ctrl-C stops it
	@sh scripts/up $(ARGS)

test: ## set up what is missing and run all tests, the real engine and model included
	@sh scripts/test $(ARGS)

gpu-check: setup ## try everything said of an NVIDIA GPU on the one that is here (3: there is none)
	@$(BIN)/python benchmarks/gpu_check.py docs/measured/$$(date +%F)-gpu-check.json $(ARGS)

check: setup ## style, types, import rule, shell scripts, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck scripts/setup scripts/up scripts/test scripts/lock .ci/run
	$(BIN)/python scripts/make_docs.py --check

fix: setup ## mend what ruff can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## write the generated docs anew
	$(BIN)/python scripts/make_docs.py

lock: ## pin the dependencies anew from pyproject.toml (ARGS=--upgrade: newest versions)
	@sh scripts/lock $(ARGS)

clean: ## remove what was built here; downloaded models stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests scripts benchmarks -name __pycache__ -type d -exec rm -rf {} +

setup:
	@sh scripts/setup dev

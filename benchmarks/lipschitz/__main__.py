"""python -m benchmarks.lipschitz NAME ..."""

from benchmarks.rooms import main

BENCHMARKS = {
    "metric": (
        "metric",
        "DeepQuant's metric Q on digits: who finds the steepest change with so many queries",
    ),
    "prepare": (
        "prepare",
        "write networks and properties where machines without the shared data or onnx find them",
    ),
    "acasxu": ("vnncomp", "ACAS Xu: 186 questions about 45 networks with 5 inputs"),
    "design": (
        "design",
        "six MNIST networks by certified radius and by uncertainty (DeepQuant, Table 6 and Fig. 10b)",
    ),
    "mnist_fc": ("vnncomp", "mnist_fc: 90 questions about 3 networks with 784 inputs"),
    "radius": (
        "radius",
        "radius brackets of 100 digits against the witnesses of every search, and DeepQuant's s / Q",
    ),
    "tanh_nets": ("tanh_nets", "train the tanh networks of DeepQuant's Table 2 again"),
    "table2": ("table2", "DeepQuant's Table 2: ranges of outputs over [0, 10]^n, certified"),
}

if __name__ == "__main__":
    main("lipschitz", BENCHMARKS)

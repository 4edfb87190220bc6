"""python -m benchmarks.lipschitz NAME ..."""

from benchmarks.command_line import main

BENCHMARKS = {
    "metric": (
        "metric",
        "DeepQuant's metric Q on digits: which search finds the steepest slope at equal queries",
    ),
    "prepare": (
        "prepare",
        "convert networks and properties for machines without the shared data or onnx",
    ),
    "acasxu": ("vnncomp", "ACAS Xu: 186 instances, 45 networks with 5 inputs"),
    "design": (
        "design",
        "six MNIST networks by certified radius and by uncertainty (DeepQuant, Table 6 and Fig. 10b)",
    ),
    "mnist_fc": ("vnncomp", "mnist_fc: 90 instances, 3 networks with 784 inputs"),
    "radius": (
        "radius",
        "radius bounds of 100 digits against every search's counterexamples, and DeepQuant's s / Q",
    ),
    "tanh_nets": ("tanh_nets", "retrain the tanh networks of DeepQuant's Table 2"),
    "table2": ("table2", "DeepQuant's Table 2: ranges of outputs over [0, 10]^n, certified"),
}

if __name__ == "__main__":
    main("lipschitz", BENCHMARKS)

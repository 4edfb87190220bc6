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
    "practice": ("practice", "VNN-COMP: problems of 30 families, solved and open by family"),
    "radius": (
        "radius",
        "radius bounds of 100 digits against every search's counterexamples, and DeepQuant's s / Q",
    ),
    "tanh_nets": ("tanh_nets", "retrain the tanh networks of DeepQuant's Table 2"),
    "norms": ("norms", "DeepQuant's Figures 5 and 6: Q in three norms on ACAS Xu and MNIST, by each search"),
    "batched": ("batched", "DeepQuant's Figure 3: calls of the network with and without batches"),
    "targeted": ("targeted", "DeepQuant's Figure 7 (a): CIFAR-10, every class against label 1"),
    "examples": ("examples", "DeepQuant's Figures 8, 10 (a) and 11: images found, KL along the search"),
    "table6": ("table6", "DeepQuant's Table 6: Q of five images for six MNIST networks"),
    "table2": ("table2", "DeepQuant's Table 2: ranges of outputs over [0, 10]^n, certified"),
}

if __name__ == "__main__":
    main("lipschitz", BENCHMARKS)

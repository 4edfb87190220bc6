"""python -m benchmarks.hamming NAME ..."""

from benchmarks.command_line import main

BENCHMARKS = {
    "digits": ("digits", "digits CNN: every search and published attack, exact bounds, the paper's rule"),
    "mnist": ("mnist", "ConvSmall on MNIST: every search and published attack, certified pixels in a minute"),
    "cifar": ("cifar", "CIFAR-10: every search and published attack; all channels of a pixel count as one"),
    "words": ("words", "news titles: how many words must be replaced by neighbours"),
    "bytes": ("bytes", "news titles as bytes, a black-box model: how many bytes must change"),
    "architectures": (
        "architectures",
        "DeepTRE's Fig. 10: seven digit networks, accuracy against robustness",
    ),
    "designs": ("designs", "DeepTRE's Figs. 10 and 11: seven MNIST designs with and without batch norm"),
    "subspaces": ("subspaces", "DeepTRE's Figs. 1 to 4: bounds against t, the number of changed pixels"),
    "guarantee": ("guarantee", "DeepTRE's Appendix A.2: a grid and a proved Lipschitz constant"),
    "curves": ("curves", "DeepTRE's Figs. 1 and 3: lower and upper bounds over time"),
    "cost": ("cost", "queries, subproblems and seconds against the number of pixels and of changes"),
    "gpu": ("gpu", "GPU: subproblems per second, certified pixels in a minute, 1,000 upper bounds"),
    "coverage": ("coverage", "DeepTRE's Table 1: coverage by generated tests, against random mutation"),
}

if __name__ == "__main__":
    main("hamming", BENCHMARKS)

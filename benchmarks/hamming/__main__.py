"""python -m benchmarks.hamming NAME ..."""

from benchmarks.rooms import main

BENCHMARKS = {
    "digits": ("digits", "digits CNN: every search and peer side by side, exact brackets, the paper's rule"),
    "mnist": ("mnist", "ConvSmall on MNIST: every search and peer side by side, what is proved in a minute"),
    "cifar": ("cifar", "CIFAR-10: every search and peer side by side, a pixel counts once"),
    "words": ("words", "news titles: how many words must be replaced by neighbours"),
    "bytes": ("bytes", "news titles by their bytes, a black box: how many bytes must change"),
    "architectures": ("architectures", "DeepTRE's Fig. 10: seven digit networks, accuracy beside robustness"),
    "curves": ("curves", "DeepTRE's Figs. 1 and 3: both ends over time"),
    "cost": ("cost", "questions, domains and seconds against the number of pixels and of changes"),
    "gpu": ("gpu", "on a graphics card: domains a second, what is proved in a minute, 1,000 upper ends"),
    "coverage": ("coverage", "DeepTRE's Table 1: coverage by generated tests, beside random mutation"),
}

if __name__ == "__main__":
    main("hamming", BENCHMARKS)

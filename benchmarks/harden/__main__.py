"""python -m benchmarks.harden NAME ...: standard, adversarial and hardened training side by side, of equal size and equal time.

On a graphics card, about ten minutes in all (torch, numpy, scipy and scikit-learn are all it takes):

    python -m benchmarks.harden rows --frames 7 14 --radius 0.01 0.05 --seconds 25 --device cuda --out OUT
    python -m benchmarks.harden mnist --radius 0.1 --seconds 40 --device cuda --out OUT
    python -m benchmarks.harden cifar --seconds 60 --device cuda --out OUT
    python -m benchmarks.harden titles --seconds 40 --device cuda --out OUT

The embedded digits, on a processor:

    python -m benchmarks.harden digits --cells lstm gru --seconds 150 --count 100 --radii 40 --out OUT

--data says where the shared data are; --count, how many test inputs are proved and attacked; --measure, for how many seconds at most:
proofs that are cut off are smaller than they could be. --recipe, --share, --horizon and so on change how the hardened network is trained.
"""

from benchmarks.rooms import main

BENCHMARKS = {
    "digits": ("digits", "the embedded digits, LSTM and GRU of 32, maximum norm, all rows"),
    "rows": ("rows", "MNIST as rows, an LSTM of 32"),
    "mnist": ("images", "a convolutional network on MNIST"),
    "cifar": ("images", "a convolutional network on 10,000 images of CIFAR-10"),
    "titles": ("titles", "news titles, every word may be a synonym"),
}

if __name__ == "__main__":
    main("harden", BENCHMARKS)

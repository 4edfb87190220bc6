"""python -m benchmarks.harden NAME ...: standard, adversarial and certified training, equal size and time.

On a GPU, about ten minutes in all (needs only torch, numpy, scipy and scikit-learn):

    python -m benchmarks.harden rows --frames 7 14 --radius 0.01 0.05 --seconds 25 --device cuda --out OUT
    python -m benchmarks.harden mnist --radius 0.1 --seconds 40 --device cuda --out OUT
    python -m benchmarks.harden cifar --seconds 60 --device cuda --out OUT
    python -m benchmarks.harden titles --seconds 40 --device cuda --out OUT

The embedded digits, on a CPU:

    python -m benchmarks.harden digits --cells lstm gru --seconds 150 --count 100 --radii 40 --out OUT

--data gives the folder of the shared data, --count the number of test inputs that are certified and attacked.
--measure limits the seconds for that; bounds that hit the limit are valid but looser.
--recipe, --share, --horizon and the like change how the hardened network is trained.
"""

from benchmarks.command_line import main

BENCHMARKS = {
    "digits": ("digits", "the embedded digits, LSTM and GRU with 32 units, maximum norm, all rows perturbed"),
    "rows": ("rows", "MNIST as rows, an LSTM with 32 units"),
    "mnist": ("images", "a convolutional network on MNIST"),
    "cifar": ("images", "a convolutional network on 10,000 images of CIFAR-10"),
    "titles": ("titles", "news titles, every word may be replaced by a synonym"),
}

if __name__ == "__main__":
    main("harden", BENCHMARKS)

"""python -m benchmarks.imagenet NAME ..."""

from benchmarks.command_line import main

BENCHMARKS = {
    "pixels": ("pixels", "DeepTRE's Figs. 8 and 9: changed pixels, adversarial images and saliency maps"),
    "feature": ("feature", "DeepQuant's Fig. 7b: robustness of networks over a feature of 50 x 50 pixels"),
    "first": (
        "first",
        "the first upper bound of every input, against a baseline of one gradient and halving",
    ),
}

if __name__ == "__main__":
    main("imagenet", BENCHMARKS)

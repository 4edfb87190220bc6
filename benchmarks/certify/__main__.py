"""python -m benchmarks.certify NAME ..."""

from benchmarks.command_line import main

BENCHMARKS = {
    "train": ("nets", "train the MNIST networks"),
    "relaxations": (
        "relaxations",
        "POPQORN's Appendix B.1: planes, lines or constants for the products of the gates",
    ),
    "anchors": ("anchors", "digits: certified radii of every tier, the attack's upper bounds, auto_LiRPA"),
    "table5": ("table5", "POPQORN's Table 5 on MNIST"),
    "titles": ("titles", "POPQORN's Figure 6: the sensitive words of news titles or TREC questions"),
    "strokes": ("strokes", "POPQORN's Figure 5: the sensitive points of pen strokes"),
    "g2pm": ("g2pm", "g2pM: a published bidirectional LSTM for Chinese"),
    "mnist_fc": ("mnist_fc", "VNN-COMP's fully connected networks"),
    "prover": ("prover", "PROVER's LSTMs: images certified by each tier"),
    "cifar": ("cifar", "a residual network on CIFAR-10: seconds, memory and radii of single images"),
    "imdb": ("imdb", "256 words, 128 hidden units: seconds and memory"),
    "reviews": ("reviews", "reviews of 200 words: radii of one word and of all, and the cost of one pass"),
    "long": ("long", "28 to 224 frames, 1 to 8 layers: radii of single frames, and the cost of one pass"),
    "autoencoder": (
        "autoencoder",
        "an LSTM autoencoder: radii of single frames for its reconstruction error",
    ),
    "speech": ("speech", "spoken digits from the waveform on: proved and attacked at -90 to -70 dB"),
    "cost": ("cost", "seconds against frames and inputs"),
    "gpu": ("gpu", "1,000 inputs end to end: seconds, and FLOP/s as a share of the device's peak"),
}

if __name__ == "__main__":
    main("certify", BENCHMARKS)

"""python -m benchmarks.monitor NAME ..."""

from benchmarks.command_line import main

BENCHMARKS = {
    "table1": (
        "table1",
        "MARBLE's Table 1: states, transitions, seconds, error and misses of abstract models",
    ),
    "table2": ("table2", "MARBLE's Table 2: attack success at the least and the most robust word"),
    "steps": ("steps", "k-step robustness: the paper's propagation, a corrected one, a constant"),
    "online": ("online", "microseconds per token, and texts of 256 words end to end"),
    "offline": (
        "offline",
        "exact labels of all training transitions; our abstraction against the published one",
    ),
    "silero": ("silero", "silero-vad monitored along a stream of speech and noise; docs/monitor-silero.png"),
}

if __name__ == "__main__":
    main("monitor", BENCHMARKS)

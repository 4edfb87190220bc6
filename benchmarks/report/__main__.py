"""python -m benchmarks.report NAME: the report page, and the comparison of networks."""

from benchmarks.command_line import main

BENCHMARKS = {
    "size": ("size", "bytes and seconds of the page for 10, 1,000 and 10,000 inputs"),
    "models": ("models", "digits networks of different depth, width and training, side by side"),
}

if __name__ == "__main__":
    main("report", BENCHMARKS)

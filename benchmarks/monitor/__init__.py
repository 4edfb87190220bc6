"""Benchmarks of the runtime monitor. One module each: `python -m benchmarks.monitor NAME --help`."""

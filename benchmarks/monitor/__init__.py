"""Room 4, monitor, measured: one benchmark a file, `python -m benchmarks.monitor NAME --help`."""

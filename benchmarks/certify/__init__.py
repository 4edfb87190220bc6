"""Room 1, certify, measured: one benchmark a file, `python -m benchmarks.certify NAME --help`."""

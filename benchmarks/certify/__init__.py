"""Benchmarks of certified radii. One module each: `python -m benchmarks.certify NAME --help`."""

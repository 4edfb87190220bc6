"""Benchmarks of the report: size and time of the HTML page, and a comparison of networks."""

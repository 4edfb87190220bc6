"""Benchmarks of changed pixels, features and words (Hamming distance)."""

"""Benchmarks of room 2: changed pixels, features and words."""

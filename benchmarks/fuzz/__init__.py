"""Fuzzing of the file readers: does each refuse a damaged file with a HoldfastError? `python -m
benchmarks.fuzz`.
"""

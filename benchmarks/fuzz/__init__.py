"""Fuzzing of the file readers (`python -m benchmarks.fuzz`): a damaged file must give a HoldfastError."""

"""Benchmarks of risk, Lipschitz estimates, reachability and verification."""

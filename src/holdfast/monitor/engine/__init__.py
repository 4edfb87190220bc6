"""Computation of scores: by enumeration or sampling, for whole sequences at once or element by element."""

"""Mutations: the possible replacements of an element: sets of tokens, typos, noise on frames."""

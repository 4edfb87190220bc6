"""What may stand in the place of an element: sets of tokens, typos, noise on frames."""

"""Abstract models of a recurrent network: MARBLE's labelled Markov decision process, and a decision tree
estimate."""

"""Abstract models of a recurrent network: MARBLE's labelled MDP, and a decision tree."""

"""The network as bound propagation sees it, how it is built from a trace, and whether it is the model."""

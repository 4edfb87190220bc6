"""Read the model, the data and other files that the options name."""

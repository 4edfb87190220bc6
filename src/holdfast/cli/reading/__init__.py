"""Models, data and other files as people give them."""

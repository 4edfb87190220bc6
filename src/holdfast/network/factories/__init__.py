"""One module for each kind of model that a `Network` can be made from."""

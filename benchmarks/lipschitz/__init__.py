"""Room 3 measured."""

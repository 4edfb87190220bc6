"""The monitor as an HTTP service."""

"""The measuring commands as plain data: their options, the files they read, and the problems they pose.

Nothing here prints. The command line (`cli/`) parses and shows; `check.py` rebuilds a stored run from its options.
"""

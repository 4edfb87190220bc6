"""Do the readers of strangers' files refuse in words whatever chance makes of an honest file? `python -m benchmarks.fuzz`."""

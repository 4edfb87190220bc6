"""A differential fuzzer for the readers of ONNX files: random small models, answered by each reader and by two references."""

"""A differential fuzzer for the ONNX readers: random small models, against two reference runtimes."""

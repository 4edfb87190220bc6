"""A differential fuzzer for the ONNX readers: random small models, evaluated by each reader and by two
references.
"""

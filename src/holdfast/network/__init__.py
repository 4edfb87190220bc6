"""Networks in: a torch module, an exported program, an ONNX file or any function, behind one face."""

from holdfast.network.network import Network

__all__ = ["Network"]

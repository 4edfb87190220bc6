"""ONNX files: read, imported as torch modules, or run with onnxruntime as black boxes."""

from holdfast.network.onnx.importer import import_onnx
from holdfast.network.onnx.module import OnnxModule, Port
from holdfast.network.onnx.opening import OpenedOnnx, of_onnx, open_onnx, session_of
from holdfast.network.onnx.reader import external_files, read_onnx
from holdfast.network.onnx.runtime import OnnxRuntime, session

__all__ = [
    "OnnxModule",
    "OnnxRuntime",
    "OpenedOnnx",
    "Port",
    "external_files",
    "import_onnx",
    "of_onnx",
    "open_onnx",
    "read_onnx",
    "session",
    "session_of",
]

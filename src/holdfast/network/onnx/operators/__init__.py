"""Every operator the importer knows. Importing the files fills the table."""

from holdfast.network.onnx.operators import arithmetic, convolution, recurrent, reduction, shape, static

__all__ = ["arithmetic", "convolution", "recurrent", "reduction", "shape", "static"]

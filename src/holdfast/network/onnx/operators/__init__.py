"""The operators that the importer knows. Importing these modules fills the tables of `table`."""

from holdfast.network.onnx.operators import (
    arithmetic,
    convolution,
    recurrent,
    reduction,
    resize,
    shape,
    static,
)

__all__ = ["arithmetic", "convolution", "recurrent", "reduction", "resize", "shape", "static"]

"""The operators that the importer knows. Importing these modules fills the tables of `table`."""

from holdfast.network.onnx.operators import (
    arithmetic,
    convolution,
    quantised,
    recurrent,
    reduction,
    resize,
    shape,
    static,
)

__all__ = ["arithmetic", "convolution", "quantised", "recurrent", "reduction", "resize", "shape", "static"]

"""Layers between DequantizeLinear and QuantizeLinear, as the integer operators that runtimes compute for them; and layers
behind DynamicQuantizeLinear, as one operator each.

A file in the format QDQ states a layer as DequantizeLinear, Gemm, QuantizeLinear. onnxruntime runs such a group as one
operator on integers, QGemm. Both are the same function in real arithmetic, if the scale of the bias is the product of
the scales of data and weight. In float32 the operator on integers has no sums that round, so its result is the one that
is deployed, and that is imported.
"""

from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from holdfast.errors import UnsupportedLayer

_OPERATORS = {"Gemm": "QGemm", "MatMul": "QLinearMatMul", "Conv": "QLinearConv"}
# Largest relative difference that is attributed to the rounding of a stored scale: 16 units roundoff of float32.
SCALE_TOLERANCE = 2.0**-20
_EIGHT_BITS = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)


def fuse_quantised_groups(model: onnx.ModelProto, file: str = "") -> onnx.ModelProto:
    """The model with these groups as operators on integers; the given one if it has none.

    file: names the file in errors.
    """
    if not any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        return model
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    graph = fused.graph
    groups = _Groups(graph, file)
    replaced = {name: made for node in graph.node if (made := groups.fuse(node)) for name in made.output}
    if not replaced:
        return model
    nodes = [replaced.get(node.output[0], node) for node in graph.node if node.output]
    needed = {info.name for info in graph.output}
    kept = []
    for node in reversed(nodes):
        if node.op_type != "DequantizeLinear" or needed & set(node.output):
            if node.op_type in _OPERATORS and not needed & set(node.output):
                continue
            kept.append(node)
            needed |= set(node.input) | _read_inside(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return fused


# Domain of operators that only this module writes.
INTERNAL = "holdfast.internal"
_DYNAMIC = {"MatMulInteger": "DynamicProduct", "ConvInteger": "DynamicConvolution"}


def fuse_dynamic_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with DynamicQuantizeLinear, MatMulInteger, Cast and Mul as one operator; the given one if it has none.

    x is quantised to (q, s, z); cast(q W) (s s_W) is the layer. Bounds need all of it at once.
    """
    makers = {node.output[0]: node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    if not makers:
        return model
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in fused.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced: dict[str, onnx.NodeProto] = {}
    for node in fused.graph.node:
        source = makers.get(node.input[0]) if node.op_type in _DYNAMIC else None
        if source is None or len(node.input) < 3 or node.input[2] != source.output[2]:
            continue
        cast = readers.get(node.output[0], [])
        last = readers.get(cast[0].output[0], []) if len(cast) == 1 and cast[0].op_type == "Cast" else []
        if len(last) != 1 or last[0].op_type != "Mul":
            continue
        factor = next((name for name in last[0].input if name != cast[0].output[0]), "")
        product = next((n for n in fused.graph.node if factor in n.output and n.op_type == "Mul"), None)
        if product is None or source.output[1] not in product.input:
            continue
        scale = next(name for name in product.input if name != source.output[1])
        zero = node.input[3] if len(node.input) > 3 else ""
        made = helper.make_node(
            _DYNAMIC[node.op_type],
            [source.input[0], node.input[1], zero, scale],
            list(last[0].output),
            name=node.name,
            domain=INTERNAL,
        )
        made.attribute.extend(node.attribute)
        replaced[last[0].output[0]] = made
    nodes = [replaced.get(node.output[0], node) for node in fused.graph.node if node.output]
    needed = {info.name for info in fused.graph.output}
    kept = []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input) | _read_inside(node)
    del fused.graph.node[:]
    fused.graph.node.extend(reversed(kept))
    return fused


def is_dynamic(model: onnx.ModelProto) -> bool:
    """Whether a grid of the network depends on its input, and so on the other inputs of a batch."""
    return any(node.op_type.startswith("DynamicQuantize") for node in model.graph.node)


def _read_inside(node: onnx.NodeProto) -> set[str]:
    """The names that the branches of a node read."""
    return {
        name
        for entry in node.attribute
        for inner in ([entry.g] if entry.HasField("g") else [])
        for part in inner.node
        for name in (*part.input, *_read_inside(part))
    } | {out.name for entry in node.attribute if entry.HasField("g") for out in entry.g.output}


class _Groups:
    def __init__(self, graph: onnx.GraphProto, file: str) -> None:
        self.file = file
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output}
        readers = Counter(name for node in graph.node for name in (*node.input, *_read_inside(node)))
        readers.update(info.name for info in graph.output)
        self.readers = readers

    def fuse(self, last: onnx.NodeProto) -> onnx.NodeProto | None:
        """The operator on integers for a group that ends with this QuantizeLinear; None if it is not one."""
        layer = self.makers.get(last.input[0]) if last.op_type == "QuantizeLinear" else None
        if layer is None or layer.op_type not in _OPERATORS or self.readers[last.input[0]] != 1:
            return None
        sources = [self.makers.get(name) for name in layer.input if name]
        plain = {entry.name for entry in layer.attribute} <= self._plain_attributes(layer)
        if not plain or not all(s is not None and s.op_type == "DequantizeLinear" for s in sources):
            return None
        data, weight, *bias = (list(source.input) for source in sources if source is not None)
        if not self._is_eight_bits(last) or not all(self._has_eight_bits(part) for part in (data, weight)):
            return None
        if data[0] in self.constants or weight[0] not in self.constants:
            return None
        result = [*last.input[1:3]]
        if bias and not self._has_whole_numbers(bias[0]):
            return None
        if bias and not self._is_sum_scale(data, weight, bias[0]):
            raise UnsupportedLayer(
                f"{self.file}: {layer.op_type} node {layer.name!r}: the scale of its bias is not the product of "
                f"the scales of data and weight. onnxruntime ignores that scale, ONNX does not, so the file has "
                f"two meanings. Quantise the network again."
            )
        shift = [bias[0][0]] if bias else []
        if layer.op_type == "Conv":
            inputs = [*data, *weight, *result, *shift]
        elif layer.op_type == "MatMul":
            inputs = [*data, *weight, *result]
        else:
            inputs = [*data, *weight, *(shift or [""]), *result]
        made = helper.make_node(
            _OPERATORS[layer.op_type],
            inputs,
            list(last.output),
            name=layer.name,
            domain="com.microsoft" if layer.op_type == "Gemm" else "",
        )
        made.attribute.extend(layer.attribute)
        return made

    def _plain_attributes(self, layer: onnx.NodeProto) -> set[str]:
        """The attributes of a layer that its operator on integers has, too."""
        if layer.op_type != "Gemm":
            return {entry.name for entry in layer.attribute}
        plain = all(
            (entry.f == 1.0 if entry.name in ("alpha", "beta") else True)
            and not (entry.name == "transA" and entry.i)
            for entry in layer.attribute
        )
        return {entry.name for entry in layer.attribute} if plain else set()

    def _is_eight_bits(self, node: onnx.NodeProto) -> bool:
        zero = self.constants.get(node.input[2]) if len(node.input) > 2 else None
        return zero is not None and zero.data_type in _EIGHT_BITS and not any(zero.dims)

    def _has_eight_bits(self, inputs: list[str]) -> bool:
        """Whether a DequantizeLinear has constant scales and zero points of 8 bits."""
        if len(inputs) != 3 or any(name not in self.constants for name in inputs[1:]):
            return False
        return self.constants[inputs[2]].data_type in _EIGHT_BITS

    def _has_whole_numbers(self, bias: list[str]) -> bool:
        known = all(name in self.constants for name in bias)
        return known and self.constants[bias[0]].data_type == onnx.TensorProto.INT32

    def _is_sum_scale(self, data: list[str], weight: list[str], bias: list[str]) -> bool:
        """Whether the scale of a bias is the product of both scales, up to its rounding; no zero point."""
        scales = [numpy_helper.to_array(self.constants[part[1]]) for part in (data, weight, bias)]
        if len(bias) > 2 and numpy_helper.to_array(self.constants[bias[2]]).any():
            return False
        product = (scales[0].astype(np.float64) * scales[1]).flatten()
        stored = scales[2].flatten()
        same_size = stored.size in (1, product.size)
        return same_size and bool((np.abs(stored - product) <= SCALE_TOLERANCE * np.abs(product)).all())

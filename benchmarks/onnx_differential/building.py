"""Builds the model of one case: one operator between an input and an output, in one of several contexts."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from benchmarks.onnx_differential.draw import Array, Draw

FIRST_OPSET = 7
LAST_OPSET = 23  # onnxruntime 1.31 runs no later one without a warning
OPEN_BATCH = "batch"


@dataclass
class Case:
    """A model file and one input for it."""

    operator: str
    content: bytes
    x: Array
    number: str = ""
    variants: tuple[str, ...] = ()  # Names of the context's variations, for the report.


@dataclass
class Build:
    """A graph under construction.

    `source`: the value under test, which is the graph's input or a constant of the file.
    """

    draw: Draw
    operator: str
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    source_shape: tuple[int, ...] = ()
    source_dtype: Any = np.float32
    of_constant: bool = False
    variants: list[str] = field(default_factory=list)
    count: int = 0

    @property
    def schema(self) -> Any:
        return onnx.defs.get_schema(self.operator, self.opset, "")

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def source(self, shape: Sequence[int]) -> str:
        self.source_shape = tuple(shape)
        return "data"

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Add a constant (initializer, Constant node, or initializer through Identity or Cast); return its
        name.
        """
        array = np.asarray(values, dtype=dtype)
        if array.dtype == np.float64 and dtype is None:
            array = array.astype(self.source_dtype)
        name, way = self.name(), self.draw.random.random()
        if way < 0.15:
            self.nodes.append(
                helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
            )
        elif way < 0.20:
            self.constants[f"{name}_stored"] = array
            self.nodes.append(helper.make_node("Identity", [f"{name}_stored"], [name]))
        elif way < 0.25 and array.dtype == np.int64 and array.size:
            self.constants[f"{name}_stored"] = array.astype(np.int32)
            self.nodes.append(helper.make_node("Cast", [f"{name}_stored"], [name], to=TensorProto.INT64))
        else:
            self.constants[name] = array
        return name

    def add(
        self, operator: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: Any
    ) -> str:
        """Add a node that is not under test (or is, with unchanged attributes); return the name of its first
        output.
        """
        names = [self.name() for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        node = helper.make_node(operator, list(inputs), names)
        kinds = {key: AttributeProto.INTS if value == [] else None for key, value in attributes.items()}
        node.attribute.extend(
            helper.make_attribute(key, value, attr_type=kinds[key]) for key, value in attributes.items()
        )
        self.nodes.append(node)
        return names[0]

    def test(self, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: Any) -> str:
        """Add the node under test.

        Attributes unknown to its version are mostly omitted; None is always omitted.
        """
        known = self.schema.attributes
        kept = {
            key: value
            for key, value in attributes.items()
            if value is not None and (key in known or self.draw.chance(self.draw.odds_invalid / 2))
        }
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        return self.add(self.operator, given, outputs, **kept)

    def setting(self, key: str, values: Any, dtype: Any = np.int64) -> tuple[str, dict[str, Any]]:
        """A setting that is an attribute in old versions and an input in new ones: the input's name or "",
        and attributes.
        """
        if values is None:
            return "", {}
        as_input = any(port.name == key for port in self.schema.inputs)
        if self.draw.chance(self.draw.odds_invalid / 3):
            as_input = not as_input
        return (self.constant(values, dtype), {}) if as_input else ("", {key: values})


@functools.cache
def versions() -> dict[str, list[int]]:
    """For each operator of ONNX, the operator sets in which it changed, from the first on."""
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {name: sorted(starts) for name, starts in found.items()}


def opset_for(draw: Draw, operator: str) -> int:
    """Any version of the operator, and any operator set in which that version holds; rarely one that is too
    old.
    """
    starts = [start for start in versions()[operator] if start <= LAST_OPSET]
    if draw.chance(0.01) and starts[0] < FIRST_OPSET:
        return draw.integer(starts[0], FIRST_OPSET - 1)
    position = draw.integer(0, len(starts) - 1)
    low = max(starts[position], FIRST_OPSET)
    high = starts[position + 1] - 1 if position + 1 < len(starts) else LAST_OPSET
    return draw.integer(low, high) if high >= low else draw.integer(FIRST_OPSET, LAST_OPSET)


def finish(build: Build, output: str, output_type: int = TensorProto.FLOAT) -> Case:
    """The model around the nodes, with the source of the value under test and the output."""
    draw, shape = build.draw, build.source_shape
    dtype = np.dtype(build.source_dtype)
    element = helper.np_dtype_to_tensor_dtype(dtype)
    size = int(np.prod(shape))
    before: list[onnx.NodeProto] = []
    input_shape: tuple[int, ...] = shape
    if build.of_constant:
        build.constants["data"] = draw.floats(shape, dtype)
        input_shape = (1, draw.integer(1, 3))
        build.variants.append("of a constant")
    elif draw.chance(0.4) or not shape:
        input_shape = (1, max(size, 1))
        build.constants["source_shape"] = np.array(shape, dtype=np.int64)
        before.append(helper.make_node("Reshape", ["x", "source_shape"], ["data"]))
    else:
        before.append(helper.make_node("Identity", ["x"], ["data"]))
    after: list[onnx.NodeProto] = []
    if output_type != element:
        after.append(helper.make_node("Cast", [output], ["result_float"], to=element))
        output = "result_float"
    if build.of_constant:
        build.constants["flat"] = np.array([-1], dtype=np.int64)
        after.append(helper.make_node("Reshape", ["x", "flat"], ["x_flat"]))
        after.append(helper.make_node("Reshape", [output, "flat"], ["result_flat"]))
        after.append(helper.make_node("Concat", ["x_flat", "result_flat"], ["y"], axis=0))
    elif draw.chance(0.3):
        build.constants["row"] = np.array([1, -1], dtype=np.int64)
        after.append(helper.make_node("Reshape", [output, "row"], ["y"]))
    else:
        after.append(helper.make_node("Identity", [output], ["y"]))
    nodes = [*before, *build.nodes, *after]
    if draw.chance(0.5):
        nodes = without_identities(nodes)
    declared: list[int | str] = list(input_shape)
    if declared and declared[0] == 1 and draw.chance(0.15):
        declared[0] = OPEN_BATCH
    inputs = [helper.make_tensor_value_info("x", element, declared)]
    initializers = [stored(draw, value, name) for name, value in build.constants.items()]
    if initializers and draw.chance(0.08):
        chosen = draw.pick(initializers)
        inputs.append(helper.make_tensor_value_info(chosen.name, chosen.data_type, list(chosen.dims)))
        build.variants.append("an initializer that is an input too")
    graph = helper.make_graph(
        nodes, "case", inputs, [helper.make_tensor_value_info("y", element, None)], initializers
    )
    opsets = [helper.make_opsetid("", build.opset)]
    if build.functions:
        opsets.append(helper.make_opsetid("own", 1))
    model = helper.make_model(graph, functions=build.functions, opset_imports=opsets, ir_version=10)
    x = draw.floats(input_shape, dtype)
    return Case(build.operator, model.SerializeToString(), x, variants=tuple(build.variants))


def stored(draw: Draw, value: Array, name: str) -> TensorProto:
    """A constant as raw bytes, or in the field of its type."""
    if value.dtype in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)) and draw.chance(0.3):
        return helper.make_tensor(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape, value.reshape(-1).tolist()
        )
    return numpy_helper.from_array(value, name)


def without_identities(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The same nodes with the first and the last Identity removed, so that the operator reads the input and
    makes the output itself.
    """
    kept = list(nodes)
    for node in [
        node for node in nodes if node.op_type == "Identity" and ("x" in node.input or "y" in node.output)
    ]:
        old, new = (
            (node.output[0], node.input[0]) if node.input[0] == "x" else (node.input[0], node.output[0])
        )
        others = [other for other in kept if other is not node]
        if new == "y" and not any(old in other.output for other in others):
            continue
        kept = others
        for other in others:
            for names in (other.input, other.output) if new == "y" else (other.input,):
                for place, name in enumerate(names):
                    if name == old:
                        names[place] = new
    return kept

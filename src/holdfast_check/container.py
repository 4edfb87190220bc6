"""Read safetensors files: eight bytes with the length of a JSON header, the header, and plain arrays. Proofs
and described models are such files.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected
from holdfast_check.graph import ModelGraph
from holdfast_check.operators import GraphNode

# Element types of safetensors as numpy types.
KINDS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "<i1", "U8": "<u1", "BOOL": "|b1",
}  # fmt: skip
GRAPH = "holdfast-graph"  # The key of the graph in the metadata of a described model.


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated names, which parsers resolve differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def read_container(data: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    """(metadata, arrays) of a safetensors file; anything else is rejected."""
    try:
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError("shorter than its header declares")
        header, body = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_once), data[8 + length :]
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        arrays = {}
        for name, about in header.items():
            start, end = about["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError(f"{name} lies outside of the file")
            arrays[name] = np.frombuffer(body[start:end], dtype=KINDS[about["dtype"]]).reshape(about["shape"])
        return metadata, arrays
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Rejected(
            f"not a safetensors file that this checker can read ({type(error).__name__}: {error})"
        ) from error


def _node(about: dict[str, Any]) -> GraphNode:
    """A node of a described graph."""
    inputs, outputs, attributes = about["in"], about["out"], about.get("with", {})
    if not set(about) <= {"op", "in", "out", "with"} or not isinstance(attributes, dict):
        raise ValueError(f"a node with the members {sorted(about)}")
    if not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in (inputs, outputs, [about["op"]])
    ):
        raise ValueError("a name that is not a string")
    return GraphNode(about["op"], tuple(inputs), tuple(outputs), attributes)


def read_described_model(data: bytes) -> ModelGraph:
    """Read a model stored as weights and a graph.

    The graph is {"input": name, "shape": [1, ...], "output": name, "nodes": [{"op", "in", "out", "with"}]}.
    Operators have their ONNX names; other names are those of the weights. `check_signatures` (version 0) defines
    how each is read.
    """
    metadata, arrays = read_container(data)
    if GRAPH not in metadata:
        raise Rejected("this safetensors file holds weights but no graph")
    try:
        graph: dict[str, Any] = json.loads(metadata[GRAPH], object_pairs_hook=_once)
        if set(graph) != {"input", "shape", "output", "nodes"}:
            raise ValueError(f"a graph with the members {sorted(graph)}")
        shape = tuple(graph["shape"])
        if not all(type(size) is int and size > 0 for size in shape):
            raise ValueError(f"the shape {shape}")
        return ModelGraph(
            str(graph["input"]), shape, str(graph["output"]), tuple(map(_node, graph["nodes"])), arrays
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Rejected(f"the graph of the model cannot be read ({type(error).__name__}: {error})") from error

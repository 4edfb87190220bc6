"""Inlining of the functions that an ONNX file defines.

The nodes are counted first: a small file can define functions that unfold to more nodes than fit into memory,
    or that call themselves.
"""

from collections.abc import Iterator

import onnx
import onnx.inliner

from holdfast.errors import UnreadableFile, UnsupportedLayer

# Largest number of nodes after inlining; no network has more (chosen by hand).
MOST_NODES = 10**6
# The two names of the standard operator set.
DOMAINS = ("", "ai.onnx")
# Domain, operator and overload of a function.
Name = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with its functions inlined. name: names the file in errors."""
    if not model.functions:
        return model
    shadowed = [f.name for f in model.functions if f.domain in DOMAINS and onnx.defs.has(f.name)]
    if shadowed:
        raise UnsupportedLayer(
            f"{name}: its function {shadowed[0]!r} has the name of an operator of ONNX. Some runtimes call "
            f"the function, others the operator, so the file has two meanings. Give the function another "
            f"name or a domain of its own."
        )
    bodies = {_name(f): list(f.node) for f in model.functions}
    sizes: dict[Name, int] = {}
    waiting = list(bodies)
    begun: set[Name] = set()
    while waiting:  # a loop instead of recursion, because a chain of calls may be as long as the file
        function = waiting[-1]
        called = [_call(node) for node in _nodes(bodies[function]) if _call(node) in bodies]
        missing = [other for other in called if other not in sizes]
        if function in sizes or not missing:
            sizes[function] = sizes.get(function) or _count(bodies[function], sizes, name)
            waiting.pop()
        elif function in begun:
            raise UnreadableFile(
                f"{name}: its function {function[1]!r} calls itself, by way of {missing[0][1]!r}. "
                f"Export the file again."
            )
        else:
            begun.add(function)
            waiting += missing
    _count(list(model.graph.node), sizes, name)
    return onnx.inliner.inline_local_functions(model)


def _count(nodes: list[onnx.NodeProto], sizes: dict[Name, int], name: str) -> int:
    """The number of nodes after inlining, given the sizes of the functions that they call."""
    total = sum(sizes.get(_call(node), 1) for node in _nodes(nodes))
    if total > MOST_NODES:
        raise UnreadableFile(
            f"{name}: its functions unfold to more than {MOST_NODES} nodes, more than any network has. "
            f"Export it again."
        )
    return total


def _nodes(nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of the graphs inside them. protobuf limits the depth of nesting."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(list(graph.node))


def _name(function: onnx.FunctionProto) -> Name:
    return function.domain, function.name, getattr(function, "overload", "")


def _call(node: onnx.NodeProto) -> Name:
    return node.domain, node.op_type, getattr(node, "overload", "")

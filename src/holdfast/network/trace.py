"""The user's model as a graph of torch operators, by torch.export. Recurrent layers stay whole."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import UnsupportedLayer


def export(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The module's graph with a free batch axis; UnsupportedLayer says why not. Recurrent layers fix the length.

    A copy is traced: torch.export may leave marks on the module it sees.
    """
    # A size of one is special to the tracer and would be baked in.
    rows = example[:1].expand(3, *example.shape[1:]).clone()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # Where it fails torch prints the whole graph; the error says it in a line.
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # nn.LSTM's flat weights look like attributes assigned during export
            return torch.export.export(copy.deepcopy(module), (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedLayer(
            f"torch.export could not turn the model into a graph ({reason}), so nothing about it can be proved. "
            f"Attacks and all black-box methods still work."
        ) from error
    finally:
        logging.disable(before)


def as_plain_module(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The program as an ordinary module: no calling convention of the exporter, no guards on the shapes it saw."""
    exported = program.module(check_guards=False)
    graph = exported.graph
    for node in list(graph.nodes):
        if "_assert_tensor_metadata" in str(node.target) or "_guards" in str(node.target):
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(exported, graph)


def converted(module: fx.GraphModule, *, dtype: torch.dtype, device: torch.device) -> fx.GraphModule:
    """A copy of an exported graph in another arithmetic or place: parameters, constants and what the tracer wrote down."""
    copied = copy.deepcopy(module).to(device=device, dtype=dtype)
    rewrite(copied, dtype=dtype, device=device)
    return copied


def rewrite(module: fx.GraphModule, *, dtype: torch.dtype, device: torch.device) -> None:
    """Every floating dtype and every device that the tracer wrote into the graph becomes this one."""

    def changed(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    for node in module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, changed)
        node.kwargs = fx.node.map_aggregate(node.kwargs, changed)
    module.recompile()


@dataclass(frozen=True)
class Layer:
    """One operator of the graph as a person would name it."""

    name: str  # where it stands in the user's module, or the graph's own name
    operator: str  # aten.linear.default
    shape: tuple[int | None, ...]  # of its output; None where it is free


def layers(program: torch.export.ExportedProgram) -> Iterator[Layer]:
    """Every operator that works on tensors, in order."""
    for node in program.graph.nodes:
        if node.op == "call_function":
            value = node.meta.get("val")
            first = value[0] if isinstance(value, tuple | list) and value else value
            if isinstance(first, Tensor):
                yield Layer(where(node), str(node.target), tuple(d if isinstance(d, int) else None for d in first.shape))


def where(node: fx.Node) -> str:
    """The path of the user's submodule that a node came from, or the node's own name."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    path = path.removeprefix("model.")
    return path if path and path != "model" else str(node.name)

"""The user's model as a graph of torch operators, by torch.export. Recurrent layers stay whole."""

import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.network.float32_precision import cudnn_flags
from holdfast.network.packed import FullSequences
from holdfast.network.recurrent import OneFrame, copy_module, put_back
from holdfast.process_state import silent_torch

_one_at_a_time = (
    threading.RLock()
)  # torch.export keeps the modes of a trace for the whole process, not for each thread


def _renew_lock() -> None:
    """Give a forked child a lock of its own: its parent's may be held by a thread that the child does not have."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def export(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The module's graph with a free batch axis; UnsupportedLayer says why not. Recurrent layers fix the length.

    A copy is traced: torch.export may leave marks on the module it sees.
    """
    # A size of one is special to the tracer and would be baked in.
    rows = example[:1].expand(3, *example.shape[1:]).clone()
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        # torch.export turns cuDNN off and on again itself, which must not undo what other threads ask for meanwhile. Where it fails torch
        # logs and prints the whole graph; the error says it in a line. It warns of the flat weights of nn.LSTM, which look like attributes
        # assigned during export.
        with _one_at_a_time, cudnn_flags(enabled=False, allow_tf32=False), torch.no_grad(), silent_torch():
            traced = _without_causal_guess(copy_module(module))
            with FullSequences(traced), OneFrame():
                program = torch.export.export(
                    traced, (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
                )
            put_back(program.graph)
            _refuse_batch_sizes(program)
            return _tidy(functional(program))
    except UnsupportedLayer:
        raise
    except Exception as error:
        reason = first_line(error)
        raise UnsupportedLayer(
            f"torch.export could not turn the model into a graph ({reason}), so nothing about it can be proved. "
            f"Attacks and all black-box methods still work."
        ) from error
    finally:
        if (
            torch._C._functorch.get_dynamic_layer_stack_depth() > depth
        ):  # where tracing fails inside a vmap, torch stays there
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _without_causal_guess(module: nn.Module) -> nn.Module:
    """torch's transformers look at the numbers of a mask to guess whether it is causal, which no tracer can follow. It is a hint for
    kernels; without it the mask itself is used."""
    for inner in module.modules():
        hint = {nn.TransformerEncoder: "is_causal", nn.TransformerDecoder: "tgt_is_causal"}.get(type(inner))
        if hint is not None:
            inner.forward = _with_hint(inner.forward, hint)
    return module


def _with_hint(forward: Callable[..., Any], hint: str) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(forward).bind(*args, **kwargs)
        if given.arguments.get(hint) is None:
            given.arguments[hint] = False
        return forward(*given.args, **given.kwargs)

    return run


# Composite operators whose kernels answer with fresh memory and which have bounds as they are. The schema of others may hide that they
# answer with a view of what they are given, as einsum's does.
WHOLE = {
    "aten.linear.default", "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.lstm.input", "aten.gru.input",
    "aten.rnn_tanh.input", "aten.rnn_relu.input", "aten.layer_norm.default", "aten.group_norm.default", "aten.instance_norm.default",
    "aten.rms_norm.default", "aten.scaled_dot_product_attention.default", "aten.softmax.int", "aten.log_softmax.int",
    "aten.max_pool1d.default", "aten.max_pool2d.default", "aten.selu.default", "aten.relu6.default", "aten.prelu.default",
    "aten.log_sigmoid.default", "aten.max.other", "aten.min.other", "aten.where.Scalar", "aten.where.ScalarOther",
    "aten.where.ScalarSelf", "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.avg_pool1d.default",
    "aten.sym_size.int", "aten.batch_norm.default", "aten.matmul.default",
}  # fmt: skip


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program where nothing overwrites anything; UnsupportedLayer where it changes its own weights or buffers."""
    writing = [node for node in program.graph.nodes if _overwrites(node)]
    if all(_alone(node) for node in writing):
        for node in writing:
            node.target = _plain_form(node.target) or node.target
        program.graph_module.recompile()
        return program
    for node in list(program.graph.nodes):
        if (
            "dropout" in str(node.target) and node.args[2] is False
        ):  # answers with its very input, which its schema does not say
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.graph_module.recompile()
    opened: torch.export.ExportedProgram = program.run_decompositions(
        dict(_implicit())
    )  # a copy: torch empties it
    changed = [
        *opened.graph_signature.buffers_to_mutate.values(),
        *opened.graph_signature.parameters_to_mutate.values(),
    ]
    if changed:
        raise UnsupportedLayer(
            f"the model overwrites its own {changed[0]} when it is asked, so its answers depend on what it was asked before and nothing "
            f"can be proved. Attacks still work."
        )
    left = next((node for node in opened.graph.nodes if _overwrites(node)), None)
    if left is not None:
        raise UnsupportedLayer(
            f"{where(left)}: {left.target} overwrites a tensor in a way that cannot be undone, which has no bound here. Use the form that "
            f"does not work in place; attacks still work."
        )
    return opened


@functools.cache
def _implicit() -> dict[Any, Any]:
    """How every composite operator but those of WHOLE is opened."""
    return {
        op: rule
        for op, rule in torch.export.default_decompositions().items()
        if str(op) not in WHOLE and _composite(op)
    }


def _tidy(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The copy with which a model's input is kept from it is no layer, where nothing is written into it. And squeeze() takes away what has
    size one in every batch: in a batch of one that axis is not meant."""
    for node in list(program.graph.nodes):
        if node.target == torch.ops.aten.squeeze.default:
            sizes = node.args[0].meta["val"].shape
            node.target, node.args = (
                torch.ops.aten.squeeze.dims,
                (node.args[0], [i for i, d in enumerate(sizes) if isinstance(d, int) and d == 1]),
            )
        copies = node.target == torch.ops.aten.clone.default and not any(
            _overwrites(user) for user in node.users
        )
        if copies and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.graph_module.recompile()
    return program


def _overwrites(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _alone(node: fx.Node) -> bool:
    """Whether nothing else can see the memory that the node overwrites: it is fresh, and nobody but this node reads it."""
    first = node.args[0] if node.args else None
    written = [argument.name for argument in node.target._schema.arguments if argument.is_write]  # type: ignore[union-attr]
    if (
        not isinstance(first, fx.Node)
        or set(first.users) != {node}
        or written != [node.target._schema.arguments[0].name]
    ):  # type: ignore[union-attr]
        return False
    return _alone(first) if _overwrites(first) else _fresh(first)


def _plain_form(op: Any) -> Any:
    """The operator that computes the same without overwriting anything, where there is one of the same arguments."""
    space, _, name = op._schema.name.partition("::")
    plain = getattr(
        getattr(getattr(torch.ops, space), name.removesuffix("_"), None),
        op._schema.overload_name or "default",
        None,
    )
    same = plain is not None and [a.name for a in plain._schema.arguments] == [
        a.name for a in op._schema.arguments
    ]
    return plain if same else None


def _fresh(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or any(
        value.alias_info is not None for value in op._schema.returns
    ):
        return False
    return str(op) in WHOLE or not _composite(op)


def _composite(op: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


CHOOSES = "chooses what to do by the size of the batch"

# cuDNN has no batch norm for more inputs at once than these (evaluation, training); up to there it is what every other kernel computes.
LIMITS_OF_KERNELS = {f"L['x'].size()[0] <= {limit}" for limit in (65535, 880801)}


def _refuse_batch_sizes(program: torch.export.ExportedProgram) -> None:
    """Raise where the tracer met a choice by the size of the batch: the graph knows one side of it only. What torch itself chooses where it
    normalises batches on a GPU is no choice of the model's."""
    on_card = any(weight.is_cuda for weight in program.state_dict.values())
    kernels = on_card and any("batch_norm" in str(node.target) for node in program.graph.nodes)
    for guard in getattr(program, "_guards_code", None) or ():
        if ".size()[0]" in guard and not (kernels and guard in LIMITS_OF_KERNELS):
            told = guard.replace("L['x'].size()[0]", "the size of the batch")
            raise UnsupportedLayer(
                f"the model {CHOOSES} (seen: {told}), so a graph shows one of its sides only and nothing can be proved. Attacks still work."
            )


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by their names; one that has several stands under each."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def as_plain_module(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The program as an ordinary module: no calling convention of the exporter, no guards on the shapes it saw."""
    exported = program.module(check_guards=False)
    graph = exported.graph
    for node in list(graph.nodes):
        if "_assert_tensor_metadata" in str(node.target) or "_guards" in str(node.target):
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(exported, graph)


def replace_weights(program: torch.export.ExportedProgram, module: nn.Module) -> torch.export.ExportedProgram:
    """The same program with the weights and buffers of another module like the one that was traced: a network in training need not be
    traced again."""
    weights = weights_of(module)
    other = copy.copy(program)
    other._state_dict = {name: weights[name] for name in program.state_dict}
    return other


def convert_graph(
    module: fx.GraphModule, *, dtype: torch.dtype | None, device: torch.device
) -> fx.GraphModule:
    """A copy of an exported graph in another arithmetic, if one is named, or place: parameters, constants, what the tracer wrote down."""
    copied = copy.deepcopy(module).to(device=device, dtype=dtype)
    rewrite(copied, dtype=dtype, device=device)
    return copied


def rewrite(module: fx.GraphModule, *, dtype: torch.dtype | None, device: torch.device) -> None:
    """Every device that the tracer wrote into the graph becomes this one, and every floating dtype, if one is named."""

    def change_value(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        return (
            dtype
            if dtype is not None and isinstance(value, torch.dtype) and value.is_floating_point
            else value
        )

    for node in module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, change_value)
        node.kwargs = fx.node.map_aggregate(node.kwargs, change_value)
    module.recompile()


@dataclass(frozen=True)
class TracedOperator:
    """One operator of the graph as a person would name it."""

    name: str  # where it stands in the user's module, or the graph's own name
    node: str  # its name in the graph
    operator: str  # aten.linear.default
    shape: tuple[int | None, ...]  # of its output; None where it is free


def layers(program: torch.export.ExportedProgram) -> Iterator[TracedOperator]:
    """Every operator that works on tensors, in order."""
    for node in program.graph.nodes:
        if node.op == "call_function":
            value = node.meta.get("val")
            first = value[0] if isinstance(value, tuple | list) and value else value
            if isinstance(first, Tensor):
                yield TracedOperator(
                    where(node),
                    node.name,
                    str(node.target),
                    tuple(d if isinstance(d, int) else None for d in first.shape),
                )


def where(node: fx.Node) -> str:
    """The path of the user's submodule that a node came from, or the node's own name."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    path = path.removeprefix("model.").removeprefix("behind.")
    return path if path and path not in ("model", "behind") else str(node.name)

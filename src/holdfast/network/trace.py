"""The user's model as a graph of torch operators, traced by torch.export.

Recurrent layers stay single operators.
"""

import builtins
import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.network.recurrent import TraceableRecurrence, copy_module, put_back
from holdfast.process_state import cudnn_flags, silent_torch

# torch.export keeps the modes of a trace for the whole process, so only one thread may trace at a time.
_one_at_a_time = threading.RLock()


# What torch.export says where Python code made an int of the batch size.
FIXED_BATCH = "Constraints violated"


class BatchSizeBranch(UnsupportedLayer):
    """The model branches on the batch size, so that a traced graph has only one of its branches."""


def _renew_lock() -> None:
    """Give a forked child a new lock: its parent's lock may be held by a thread that the child does not
    have."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def export(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The module's graph with a free batch axis; UnsupportedLayer with the reason if there is none.

    Recurrent layers fix the sequence length. A copy is traced, because torch.export may change the module.
    """
    # The tracer would treat a batch size of one as constant.
    rows = example[:1].expand(3, *example.shape[1:]).clone()
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        # torch.export turns cuDNN off and on again itself, which must not undo the flags of other threads.
        # When it fails, torch logs and prints the whole graph; the error below has one line. It also warns of
        # the flat weights of nn.LSTM, which it takes for attributes that are assigned during export.
        with _one_at_a_time, cudnn_flags(enabled=False, allow_tf32=False), torch.no_grad(), silent_torch():
            program = _export_with_free_batch(module, rows)
            put_back(program.graph)
            _refuse_batch_sizes(program)
            return _tidy(functional(program))
    except UnsupportedLayer:
        raise
    except Exception as error:
        reason = first_line(error)
        raise UnsupportedLayer(
            f"torch.export could not turn the model into a graph ({reason}), so nothing about it can be "
            f"proved. Attacks and all black-box methods still work."
        ) from error
    finally:
        # If tracing fails inside a vmap, torch does not leave the vmap.
        if torch._C._functorch.get_dynamic_layer_stack_depth() > depth:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _export_with_free_batch(module: nn.Module, rows: Tensor) -> torch.export.ExportedProgram:
    """torch.export's program of a copy of the module; if it fails, a second trace with `len` of tensors symbolic.

    Python's len(x) has to return an int, so it fixes the batch size at that of the example.
    """

    def export_copy() -> torch.export.ExportedProgram:
        traced = _without_causal_guess(copy_module(module))
        with TraceableRecurrence(traced):
            return torch.export.export(
                traced, (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
            )

    try:
        return export_copy()
    except Exception as error:
        if FIXED_BATCH not in str(error):
            raise
        with _symbolic_len() as was_called:
            try:
                return export_copy()
            except Exception:
                if was_called:
                    raise
        raise


@contextmanager
def _symbolic_len() -> Iterator[list[bool]]:
    """A context in which len(x) of a tensor is x.shape[0]; yields a list that is empty until such a call.

    For tensors with known sizes it is the same int as before, so other threads see no difference.
    """
    own, called = builtins.len, list[bool]()

    def size(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim():
            if not called:
                called.append(True)
            return value.shape[0]
        return own(value)

    builtins.len = size
    try:
        yield called
    finally:
        builtins.len = own


def _without_causal_guess(module: nn.Module) -> nn.Module:
    """Stop torch's transformers from inspecting the values of a mask to guess whether it is causal, which
    cannot be traced.

    The guess is only a hint for kernels; without it the mask itself is used.
    """
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


# Composite operators that have bounds and whose kernels return newly allocated memory. The schema of other
# composite operators may hide that they return a view of their input, as einsum's does.
WHOLE = {
    "aten.linear.default",
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    "aten.lstm.input",
    "aten.gru.input",
    "aten.rnn_tanh.input",
    "aten.rnn_relu.input",
    "aten.layer_norm.default",
    "aten.group_norm.default",
    "aten.instance_norm.default",
    "aten.rms_norm.default",
    "aten.scaled_dot_product_attention.default",
    "aten.softmax.int",
    "aten.log_softmax.int",
    "aten.max_pool1d.default",
    "aten.max_pool2d.default",
    "aten.selu.default",
    "aten.relu6.default",
    "aten.prelu.default",
    "aten.log_sigmoid.default",
    "aten.max.other",
    "aten.min.other",
    "aten.where.Scalar",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.avg_pool1d.default",
    "aten.sym_size.int",
    "aten.batch_norm.default",
    "aten.matmul.default",
}


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without in-place operators; UnsupportedLayer if it changes its own weights or buffers."""
    writing = [node for node in program.graph.nodes if _overwrites(node)]
    if all(_alone(node) for node in writing):
        for node in writing:
            node.target = _plain_form(node.target) or node.target
        program.graph_module.recompile()
        return program
    for node in list(program.graph.nodes):
        # Dropout in evaluation mode returns its input itself, which its schema does not say.
        if "dropout" in str(node.target) and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.graph_module.recompile()
    # The rules are copied, because torch empties the dictionary.
    decomposed: torch.export.ExportedProgram = program.run_decompositions(dict(_decompositions()))
    changed = [
        *decomposed.graph_signature.buffers_to_mutate.values(),
        *decomposed.graph_signature.parameters_to_mutate.values(),
    ]
    if changed:
        raise UnsupportedLayer(
            f"the model overwrites its own {changed[0]} when it is called, so its answers depend on earlier "
            f"inputs and nothing can be proved. Attacks still work."
        )
    left = next((node for node in decomposed.graph.nodes if _overwrites(node)), None)
    if left is not None:
        raise UnsupportedLayer(
            f"{where(left)}: {left.target} overwrites a tensor in a way that cannot be undone, which has no "
            f"bound here. Use the form that does not work in place; attacks still work."
        )
    return decomposed


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Decomposition rules for every composite operator except those of WHOLE."""
    return {
        op: rule
        for op, rule in torch.export.default_decompositions().items()
        if str(op) not in WHOLE and _composite(op)
    }


def _tidy(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Remove the copy that `Adapter` makes of the input, unless it is written to.

    And make squeeze() keep the batch axis.

    squeeze() without axes becomes a squeeze of those axes that have size one for every batch size.
    """
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
    """Whether no other node can see the memory that the node overwrites: it is newly allocated, and only this
    node reads it."""
    first = node.args[0] if node.args else None
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    written = [argument.name for argument in arguments if argument.is_write]
    if not isinstance(first, fx.Node) or set(first.users) != {node} or written != [arguments[0].name]:
        return False
    return _alone(first) if _overwrites(first) else _fresh(first)


def _plain_form(op: Any) -> Any:
    """The operator with the same arguments that computes the same without writing in place, or None."""
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


# Guards of torch's own: cuDNN has no batch norm for larger batches than these (in evaluation and in training
# mode). Below the limits all kernels compute the same.
LIMITS_OF_KERNELS = {f"L['x'].size()[0] <= {limit}" for limit in (65535, 880801)}


def _refuse_batch_sizes(program: torch.export.ExportedProgram) -> None:
    """Raise BatchSizeBranch if the traced model branches on the batch size.

    The choice of a batch norm kernel by torch on a GPU is allowed.
    """
    on_gpu = any(weight.is_cuda for weight in program.state_dict.values())
    kernels = on_gpu and any("batch_norm" in str(node.target) for node in program.graph.nodes)
    for guard in getattr(program, "_guards_code", None) or ():
        if ".size()[0]" in guard and not (kernels and guard in LIMITS_OF_KERNELS):
            condition = guard.replace("L['x'].size()[0]", "the size of the batch")
            raise BatchSizeBranch(
                f"the model chooses what to do by the size of the batch (seen: {condition}), so a graph has "
                f"only one of its branches and nothing can be proved. Attacks still work."
            )


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; one with several names appears under each."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def as_plain_module(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The program as an ordinary module, without the exporter's calling convention and guards on shapes."""
    exported = program.module(check_guards=False)
    graph = exported.graph
    for node in list(graph.nodes):
        if "_assert_tensor_metadata" in str(node.target) or "_guards" in str(node.target):
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(exported, graph)


def replace_weights(program: torch.export.ExportedProgram, module: nn.Module) -> torch.export.ExportedProgram:
    """The program with the weights and buffers of another module of the same architecture.

    So a network that is being trained need not be traced again.
    """
    weights = weights_of(module)
    other = copy.copy(program)
    other._state_dict = {name: weights[name] for name in program.state_dict}
    return other


def convert_graph(
    module: fx.GraphModule,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    own: torch.dtype | None = None,
) -> fx.GraphModule:
    """A copy of an exported graph on another device and, unless dtype is None, in another floating dtype.

    own: as for `rewrite`.
    """
    copied = copy.deepcopy(module).to(device=device, dtype=dtype)
    rewrite(copied, dtype=dtype, device=device, own=own)
    return copied


def module_in_float64(module: nn.Module, device: torch.device, own: torch.dtype) -> nn.Module:
    """A copy of a module in float64, with the graphs inside it. own: as for `rewrite`."""
    copied = copy_module(module).double()
    for part in copied.modules():
        if isinstance(part, fx.GraphModule):
            rewrite(part, dtype=torch.float64, device=device, own=own)
    return copied


def rewrite(
    module: fx.GraphModule,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    own: torch.dtype | None = None,
) -> None:
    """Replace every device, and unless dtype is None every floating dtype, in the arguments of the operators.

    A cast to a type that is narrower than `own`, the network's own type, rounds on purpose, so it stays.
    None: replace all.
    """

    def change_value(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        if dtype is None or not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        rounds_on_purpose = own is not None and torch.finfo(value).eps > torch.finfo(own).eps
        return value if rounds_on_purpose else dtype

    for node in module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, change_value)
        node.kwargs = fx.node.map_aggregate(node.kwargs, change_value)
    module.recompile()


@dataclass(frozen=True)
class TracedOperator:
    """One operator of the graph, for display.

    Attributes:
        name: the path of the user's submodule that it comes from, or the name of its node.
        node: the name of its node in the graph.
        operator: such as aten.linear.default.
        shape: of its output; None for an axis of any size.
    """

    name: str
    node: str
    operator: str
    shape: tuple[int | None, ...]


def layers(program: torch.export.ExportedProgram) -> Iterator[TracedOperator]:
    """The operators of the graph that return tensors, in order."""
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

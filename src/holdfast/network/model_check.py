"""Checks before a model is measured: it takes such inputs, treats the rows of a batch independently, and is
deterministic and stateless."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.foreign_text import first_line
from holdfast.network.adapter import (
    Adapter,
    RowByRow,
    check_unambiguous,
    map_over_batch,
    note_of_choice,
    single_input_model,
)
from holdfast.network.output_comparison import alike, same_by_rounding
from holdfast.network.recurrent import copy_module
from holdfast.network.statefulness import first_change, generators, state_changed_by_calls

if TYPE_CHECKING:
    from holdfast.network.network import Network


class RefusedInput(BadInput):
    """The model itself raised an exception."""


def check_and_count_outputs(net: "Network", x: Tensor) -> int:
    """The number of outputs for inputs shaped like x.

    Raises BadInput if the model is not fit to be measured on them.

    The model is evaluated on the first two rows of x; if it raises an exception on these, on the last two.
    """
    try:
        return _check_on_first_rows(net, x)
    except RefusedInput:
        return _check_on_first_rows(net, x.flip(0))


def _check_on_first_rows(net: "Network", x: Tensor) -> int:
    x = x.to(net.device, net.dtype)
    shape = tuple(x.shape[1:])
    if net.shape is not None and not _fits(shape, net.shape):
        expected = "x".join("any" if size is None else str(size) for size in net.shape)
        raise BadInput(
            f"the inputs have shape {shape}, {net.name} takes {expected} (without the batch axis)."
        )
    first = x[:2] if len(x) > 1 else x.repeat(2, *(1 for _ in x.shape[1:]))
    _check_stateless(net, first)
    before = net.checked_pairs.get(shape)
    known = before if before is not None and torch.equal(before[0], first) else None
    try:
        generators_before = generators()
        with _note_extra_outputs(net):
            pair = net(first)
            generator = first_change(generators_before, generators())
            # These inputs were checked before and get the same answers: the model is still the same function.
            if known is not None and generator is None and alike(pair, known[1]):
                return net.widths[shape]
            alone = torch.cat([net(row[None]) for row in first])
        again = net(first)
    except BadInput:
        raise
    except Exception as error:
        raise _refused_input(net.name, x, error) from error
    if generator is not None:
        raise BadInput(
            f"{net.name} draws random numbers ({generator} generator), so it may answer differently for the "
            f"same input and no result about it has a meaning. Remove the randomness, or put the model into "
            f"evaluation mode."
        )
    _check_outputs(net.name, pair)
    if not same_by_rounding(pair, alone):
        raise BadInput(
            f"{net.name} answers differently when inputs share a batch, so no answer about one input has a "
            f"meaning. Is the batch axis really first (time_first=)? Does a layer work across the batch?"
        )
    if not alike(pair, again):
        raise BadInput(
            f"{net.name} answers differently when it is called again with the same input, so no answer "
            f"about it has a meaning. Does it draw random numbers (dropout, noise), or remember earlier "
            f"inputs? Remove that, or fix its state."
        )
    if net.classes is not None and pair.shape[1] > 1 and len(net.classes) != pair.shape[1]:
        raise BadInput(
            f"{len(net.classes)} classes are named, but {net.name} has {pair.shape[1]} outputs. Name all of them in the "
            "order of the outputs, or none."
        )
    net.checked_pairs[shape] = (first, pair)
    net.widths[shape] = int(pair.shape[1])
    return net.widths[shape]


def _check_stateless(net: "Network", first: Tensor) -> None:
    """Raise BadInput if calls change the state of the model. The result is kept for each input shape."""
    shape = tuple(first.shape[1:])
    if net.differentiable and shape not in net.state_changes:
        call_one_by_one_if_needed(net, first)
        try:
            net.state_changes[shape] = state_changed_by_calls(net.name, net.module, first)
        except BadInput:
            raise
        except Exception as error:
            raise _refused_input(net.name, first, error) from error
    if net.state_changes.get(shape):
        raise BadInput(
            f"{net.name} remembers earlier inputs: {net.state_changes[shape]} changes when the model is "
            f"called, so no answer about it has a meaning. Remove that. If the model builds a layer or a "
            f"table in its first call, call it once before you give it to holdfast."
        )


def _check_outputs(name: str, pair: Tensor) -> None:
    """Raise BadInput unless the outputs for a batch of two are (2, outputs), floating point and finite."""
    if pair.dim() != 2 or pair.shape[0] != 2:
        raise BadInput(
            f"{name} answered {tuple(pair.shape)} to a batch of 2; expected (batch, outputs). For a "
            f"time-first model pass time_first=True, for one answer a frame pass pool='last', 'mean' or "
            f"'max'."
        )
    if not pair.is_floating_point():
        raise BadInput(
            f"{name} answers with {pair.dtype}, not with real numbers; give it without its last step."
        )
    if not bool(pair.isfinite().all()):
        raise BadInput(
            f"{name} answers NaN or infinity on the first inputs; check its weights and the scale of the "
            f"data."
        )


def call_one_by_one_if_needed(net: "Network", first: Tensor) -> bool:
    """Let the network evaluate inputs one at a time if its model cannot evaluate two together but can
    evaluate each alone.

    Returns whether the network was changed.
    """
    if not net.differentiable or len(first) < 2 or single_input_model(net.module) is not None:
        return False
    try:
        # A copy, because a stateful model must not be called before `state_changed_by_calls` has looked at
        # it.
        probe = copy_module(net.module)
        with torch.no_grad(), contextlib.suppress(Exception):
            if len(probe(first)) != 1:
                return False
        wrapper = type(map_over_batch(probe, first))
    except Exception:  # the model cannot evaluate these inputs at all
        return False
    net.module = Adapter(wrapper(net.module)).eval()
    if net.token_model is not None:
        net.token_model = Adapter(RowByRow(net.token_model)).eval()
    net.forget_checks()
    net.notes = (*net.notes, "takes one input at a time, so it is called once for each input")
    return True


@contextlib.contextmanager
def _note_extra_outputs(net: "Network") -> Iterator[None]:
    """Add a note if the model returns several values.

    Raise BadInput if more than one of them could be the measured output.
    """
    adapter = single_input_model(net.module) or net.module
    if not isinstance(adapter, Adapter) or isinstance(adapter.model, torch.jit.ScriptModule):
        yield
        return
    chooses = not isinstance(adapter.model, nn.RNNBase)
    with adapter.recorded_answers() as answers:
        try:
            yield
        finally:
            for note in (note_of_choice(answer, adapter.output) for _, answer in answers if chooses):
                if note is not None and note not in net.notes:
                    net.notes = (*net.notes, note)
    if adapter.output is None and chooses:
        check_unambiguous(answers)


def _refused_input(name: str, x: Tensor, error: Exception) -> RefusedInput:
    """The model's exception as BadInput, with a hint where the exception means that the model expects another
    kind of input."""
    hint = ""
    if isinstance(error, TypeError | IndexError | KeyError | AttributeError):
        shape = str(("batch", *x.shape[1:])).replace("'batch'", "batch")
        hint = (
            f". holdfast gives the model one tensor of shape {shape}: a model that takes a dict, a list or "
            f"several inputs needs a module around it whose forward takes that tensor"
        )
    return RefusedInput(
        f"{name} refused inputs of shape {tuple(x.shape[1:])}: {first_line(error).rstrip('.')}{hint}."
    )


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether a shape matches one in which None accepts any size."""
    return len(shape) == len(expected) and all(
        size is None or size == actual for actual, size in zip(shape, expected, strict=True)
    )

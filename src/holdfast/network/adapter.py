"""Modules around the user's model that make every network (batch, *shape) -> (batch, outputs) in the user's
units."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import BadInput

Pool = Literal["last", "mean", "max"]
# Number of random rows on which the ways to evaluate a batch are compared (chosen by hand).
PROBE_ROWS = 3
# Largest difference between outputs of one row in different batches that is attributed to rounding (chosen by
# hand).
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-4


def tensor_of(answer: Any, output: str | None = None) -> Tensor:
    """The measured tensor of a model's answer.

    Of a tuple, such as (outputs, state) of nn.LSTM, this is the element at position `output`, counted from 0;
    by default the first that is not None. Of an answer with names (a dict, a ModelOutput), it is the part
    that `output` names; by default the logits, or the only tensor.
    """
    if (
        isinstance(answer, tuple | list)
        and output is not None
        and output not in _named_parts(answer)
        and output.isdecimal()
    ):
        if int(output) >= len(answer):
            raise BadInput(f"output={output!r}: the model answers with {len(answer)} things, counted from 0.")
        answer, output = answer[int(output)], None
    while (
        isinstance(answer, tuple | list)
        and any(part is not None for part in answer)
        and output not in _named_parts(answer)
    ):
        answer = next(part for part in answer if part is not None)
    named = _named_parts(answer)
    tensors = [name for name, part in named.items() if isinstance(part, Tensor) and part.is_floating_point()]
    if output is not None and output not in named:
        has = f"has {', '.join(named)}" if named else f"is {type(answer).__name__}"
        raise BadInput(f"output={output!r}: the model's answer {has}.")
    if named:
        name = output or next((name for name in tensors if name == "logits" or len(tensors) == 1), None)
        if name is None:
            raise BadInput(
                f"the model answers with several things ({', '.join(named)}). Name the one to measure, "
                f"for example output={(tensors or list(named))[0]!r} (--output on the command line)."
            )
        answer = named[name]
    if not isinstance(answer, Tensor):
        raise BadInput(
            f"the model answers with {type(answer).__name__}, not with a tensor. "
            f"Wrap it in a module whose forward returns the tensor to measure."
        )
    return answer


def _named_parts(answer: Any) -> dict[str, Any]:
    """The named parts of an answer: of a dict, a ModelOutput, a dataclass or a named tuple."""
    if isinstance(answer, Mapping):
        return {str(key): part for key, part in answer.items()}
    if is_dataclass(answer) and not isinstance(answer, type):
        return {
            key.name: getattr(answer, key.name)
            for key in fields(answer)
            if getattr(answer, key.name) is not None
        }
    return dict(answer._asdict()) if hasattr(answer, "_asdict") else {}


def note_of_choice(answer: Any, output: str | None = None) -> str | None:
    """A note for the user about which part of an answer `tensor_of` chooses; None if there is only one."""
    named = _named_parts(answer)
    if isinstance(answer, tuple | list) and len(answer) > 1 and not named:
        position = (
            "the first" if output is None or not output.isdecimal() else f"number {output}, counted from 0,"
        )
        return f"the model answers with {len(answer)} things; {position} of them is measured"
    if len(named) > 1:
        chosen = tensor_of(answer, output)
        name = next(name for name, part in named.items() if part is chosen)
        return f"the model answers with {', '.join(named)}; {name} is measured"
    return None


def check_unambiguous(answers: Sequence[tuple[int, Any]]) -> None:
    """Raise BadInput if a model answers with a tuple in which a tensor other than the first could be the
    output.

    A tensor could be the output if it is floating point and its first axis is always the batch axis. The
    first axis of a state, which nn.GRU returns with its outputs, counts layers instead.

    Args:
        answers: pairs of a batch size and the model's answer to such a batch.
    """
    tuples = [
        (batch, answer)
        for batch, answer in answers
        if isinstance(answer, tuple | list) and not _named_parts(answer)
    ]
    if not tuples:
        return
    candidates = set.intersection(
        *({i for i, part in enumerate(answer) if _has_batch_axis(part, batch)} for batch, answer in tuples)
    )
    answer = tuples[0][1]
    first = next((i for i, part in enumerate(answer) if part is not None), 0)
    if candidates - {first}:
        kinds = ", ".join(f"{i}: {_describe_part(part)}" for i, part in enumerate(answer))
        raise BadInput(
            f"the model answers with {len(answer)} things ({kinds}), and more than one could be meant. Give "
            f"the position of the one to measure: output='{first}' (--output {first} on the command line)."
        )


def _has_batch_axis(part: Any, batch: int) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 0 and part.shape[0] == batch


def _describe_part(part: Any) -> str:
    return (
        " x ".join(map(str, part.shape)) or "one number" if isinstance(part, Tensor) else type(part).__name__
    )


def _rows_interact(model: nn.Module, rows: Tensor) -> bool:
    """Whether the outputs for one row depend on another row.

    One row is set to NaN, which saturated layers do not hide.
    """
    answer = Adapter(model)(rows)
    for row in {0, len(rows) // 2, len(rows) - 1}:
        marked = rows.clone()
        marked[row] = torch.nan
        others = torch.arange(len(rows)) != row
        with contextlib.suppress(Exception):  # a model may refuse NaN
            if not torch.equal(Adapter(model)(marked)[others], answer[others]):
                return True
    return False


class OutputOf(nn.Module):
    """Returns the part `output` of the model's answer."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(self, *inputs: Tensor) -> Tensor:
        return tensor_of(self.model(*inputs), self.output)


@dataclass(frozen=True)
class Scaling:
    """The numbers that convert between the user's units and the model's; None: the units are the same.

    Inputs become (inputs - mean) / std. Outputs become outputs * output_std + output_mean, one number for all or one
    for each along the last axis of the model's answer.
    """

    mean: Tensor | None = None
    std: Tensor | None = None
    output_mean: Tensor | None = None
    output_std: Tensor | None = None


class Adapter(nn.Module):
    """Normalises the input, converts to a time-first model's axis order and back, picks and pools the output,
    and converts it to the user's units.

    real_outputs: answers in integers, such as a count, become floating numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scaling: Scaling | None = None,
        time_first: bool = False,
        pool: Pool | None = None,
        takes_lengths: bool = False,
        output: str | None = None,
        real_outputs: bool = False,
    ) -> None:
        super().__init__()
        scaling = scaling or Scaling()
        self.model = model
        self.real_outputs = real_outputs
        self.time_first = time_first
        self.pool = pool
        self.takes_lengths = takes_lengths
        self.output = output
        self.mean: Tensor | None
        self.std: Tensor | None
        self.register_buffer("mean", scaling.mean)
        self.register_buffer("std", scaling.std)
        self.output_mean: Tensor | None
        self.output_std: Tensor | None
        self.register_buffer("output_mean", scaling.output_mean)
        self.register_buffer("output_std", scaling.output_std)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *shape) -> (batch, outputs)."""
        batch, length = x.shape[0], x.shape[1] if x.dim() > 1 else 1
        for what, value in (("mean", self.mean), ("std", self.std)):
            if value is not None and value.dim() >= x.dim():  # it would broadcast along the batch axis
                raise BadInput(
                    f"{what} has shape {tuple(value.shape)}, and an input has {x.dim() - 1} axes: "
                    f"it does not broadcast over one."
                )
            if value is not None and any(
                size not in (1, own)
                for size, own in zip(reversed(value.shape), reversed(x.shape), strict=False)
            ):
                raise BadInput(
                    f"{what} has {' x '.join(map(str, value.shape))} numbers, which do not fit inputs of shape "
                    f"{tuple(x.shape[1:])}: give one number, or one for each feature (the last axis). For numbers of "
                    "flattened inputs, give the shape of an input too (shape=, --shape)."
                )
        # A copy, because the model may write into its input.
        x = x.clone() if self.mean is None else x - self.mean
        if self.std is not None:
            x = x / self.std
        if self.time_first:
            x = x.transpose(0, 1)
        if self.takes_lengths:
            # Inputs of different length never share a batch here, so no row is padded.
            lengths = (
                torch.tensor([length] * batch)
                if isinstance(batch, int)
                else torch.full((batch,), length, dtype=torch.int64)
            )
            outputs = self.model(x, lengths)
        else:
            outputs = self.model(x)
        outputs = tensor_of(outputs, self.output)
        if self.real_outputs and not outputs.is_floating_point():
            outputs = outputs.to(x.dtype)
        if self.pool is not None:
            outputs = self._pool_time(outputs)
        if outputs.dim() < 2:
            # A squeeze() in the model that was meant for another axis removes the batch axis of a batch of one.
            lost_batch_axis = isinstance(batch, int) and batch == 1
            outputs = outputs.unsqueeze(0 if lost_batch_axis else 1)
        if self.output_std is not None:
            outputs = self._fit_outputs(outputs, self.output_std, "output_std") * self.output_std
        if self.output_mean is not None:
            outputs = self._fit_outputs(outputs, self.output_mean, "output_mean") + self.output_mean
        return outputs.flatten(1)

    def _fit_outputs(self, outputs: Tensor, value: Tensor, what: str) -> Tensor:
        """The outputs in a shape whose last axis the numbers of `value` fit; BadInput if none does."""
        own = tuple(outputs.shape[1:])
        if value.numel() in (1, own[-1]):
            return outputs
        if value.numel() == math.prod(own):
            return outputs.flatten(1)
        raise BadInput(
            f"{what} has {value.numel()} numbers, and the model answers with {' x '.join(map(str, own))} for each "
            "input: give one number, one for each along the last axis, or one for each of all."
        )

    @contextlib.contextmanager
    def recorded_answers(self) -> Iterator[list[tuple[int, Any]]]:
        """A context that lists each answer of the model as it gives it, with the batch size."""
        answers: list[tuple[int, Any]] = []

        def record(_: nn.Module, inputs: Any, answer: Any) -> None:
            answers.append((inputs[0].shape[1 if self.time_first else 0], answer))

        handle = self.model.register_forward_hook(record)
        try:
            yield answers
        finally:
            handle.remove()

    def _pool_time(self, outputs: Tensor) -> Tensor:
        """(batch, time, outputs), or (time, batch, outputs) -> (batch, outputs)."""
        time = 0 if self.time_first else 1
        if self.pool == "last":
            return outputs.select(time, -1)
        return outputs.mean(time) if self.pool == "mean" else outputs.amax(time)


class MappedOverBatch(nn.Module):
    """A model for single inputs, mapped over a batch with torch.func.vmap.

    keeps_axis: the model expects a batch axis of size one; else it expects no batch axis.
    """

    def __init__(self, model: nn.Module, *, keeps_axis: bool = True) -> None:
        super().__init__()
        self.model = model
        self.keeps_axis = keeps_axis

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = torch.func.vmap(self.single, randomness="error")(x)
        return mapped

    def single(self, x: Tensor) -> Tensor:
        """The outputs for one input without a batch axis."""
        outputs = tensor_of(self.model(x.unsqueeze(0) if self.keeps_axis else x))
        if not self.keeps_axis:
            return outputs
        return outputs[0] if outputs.dim() > 1 and outputs.shape[0] == 1 else outputs.flatten()


class FirstRow(nn.Module):
    """The first row of a batch by itself."""

    def __init__(self, model: MappedOverBatch) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.single(x[0]).unsqueeze(0)


class RowByRow(nn.Module):
    """A model for single inputs that vmap cannot map: evaluated row after row."""

    def __init__(self, model: nn.Module, *, keeps_axis: bool = True) -> None:
        super().__init__()
        self.model = MappedOverBatch(model, keeps_axis=keeps_axis)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.model.single(row) for row in x])


def map_over_batch(model: nn.Module, rows: Tensor) -> nn.Module:
    """A model for batches of one as a model for any batch: with vmap if that gives the same outputs, else row
    after row.

    Exceptions that the model raises on single rows are not caught.
    """
    single = MappedOverBatch(model)
    with torch.no_grad():
        expected = torch.stack([single.single(row) for row in rows])
        with contextlib.suppress(Exception):
            if _same_outputs(single(rows), expected):
                return single
    return RowByRow(model)


def single_input_model(module: nn.Module) -> nn.Module | None:
    """The model inside an adapter that evaluates its inputs one at a time; None if inputs share a batch."""
    inner = module.model if isinstance(module, Adapter) else None
    inner = inner.model if isinstance(inner, RowByRow) else inner
    return inner.model if isinstance(inner, MappedOverBatch) else None


class BlackBox(nn.Module):
    """A function of numpy arrays, (n, *shape) -> (n, outputs), as a module without gradients and graph.

    batched: whether the function takes a batch axis; without one it takes one input, (*shape) -> outputs.
    """

    def __init__(self, function: Callable[[np.ndarray[Any, Any]], Any], *, batched: bool = True) -> None:
        super().__init__()
        self.function = function
        self.batched = batched

    def forward(self, x: Tensor) -> Tensor:
        answer = np.asarray(self.function(x.detach().cpu().numpy()))
        if self.batched and (answer.ndim == 0 or answer.shape[0] != x.shape[0]):
            raise BadInput(
                f"the model's function returned shape {answer.shape} for {x.shape[0]} inputs; "
                f"it must return one row for each input."
            )
        if not np.issubdtype(answer.dtype, np.number):
            raise BadInput(f"the model's function returned {answer.dtype}, expected numbers.")
        return torch.from_numpy(np.ascontiguousarray(answer)).to(x)


def for_any_batch(model: nn.Module, example: Tensor, *, fixed: int | None = None) -> nn.Module:
    """The model itself if it takes any batch size; else the model mapped over single rows.

    Args:
        fixed: the batch size that the model's file declares. If it is larger than one, a single row must have
            the same outputs alone as in a batch; else BadInput is raised.
    """
    count = max(PROBE_ROWS, fixed or 0)
    rows = torch.randn(
        (count, *example.shape[1:]), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(example)
    single = MappedOverBatch(model)
    with torch.no_grad():
        if fixed is not None and fixed > 1:
            _check_rows_apart(model, rows[:fixed])
        rows = rows[:PROBE_ROWS]
        expected = torch.stack([single.single(row) for row in rows])
        for candidate in (Adapter(model), single):
            try:
                outputs = candidate(rows)
            except Exception:  # the model does not accept this batch size
                continue
            if _same_outputs(outputs, expected):
                return model if candidate is not single else single
            if fixed is None and candidate is not single and outputs.shape == expected.shape:
                raise BadInput(
                    "the model answers differently when inputs share a batch, so no answer about one input "
                    "has a meaning. Is the batch axis really first (time_first=)? Does a layer work across "
                    "the batch?"
                )
    return RowByRow(model)


def _check_rows_apart(model: nn.Module, rows: Tensor) -> None:
    """Raise BadInput unless a model for a fixed batch also takes single rows, with the same outputs as in the
    batch."""
    fixed, single = len(rows), MappedOverBatch(model)
    with contextlib.suppress(Exception):
        together, alone = Adapter(model)(rows), torch.stack([single.single(row).flatten() for row in rows])
        if _same_outputs(together, alone) and not _rows_interact(model, rows):
            return
    raise BadInput(
        f"the model takes exactly {fixed} inputs of shape {tuple(rows.shape[1:])} at once and does not "
        f"answer them one by one. Export it with a free batch axis, or with a batch of one; if all {fixed} "
        f"together are one input, pass batched=False."
    )


def _same_outputs(outputs: Tensor, expected: Tensor) -> bool:
    return outputs.shape == expected.shape and torch.allclose(
        outputs, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE
    )


def over_single_inputs(model: nn.Module, example: Tensor) -> nn.Module:
    """A model without a batch axis as a model for a batch: with vmap if that gives the same outputs, else row
    after row."""
    single, rows = MappedOverBatch(model, keeps_axis=False), torch.stack([example, example])
    with contextlib.suppress(Exception), torch.no_grad():
        mapped, expected = single(rows)[0], single.single(example)
        if torch.allclose(mapped, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE):
            return single
    return RowByRow(model, keeps_axis=False)

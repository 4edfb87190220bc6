"""Small modules around the user's model, so that every network is (batch, *shape) -> (batch, outputs) in the user's units."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import BadInput

Pool = Literal["last", "mean", "max"]


def tensor_of(answer: Any, output: str | None = None) -> Tensor:
    """What is measured of a model's answer.

    Of several things in a row, as nn.LSTM answers (outputs, state), the first that is there, or the one at the place `output`, counted
    from 0; of named ones the one that `output` names, else the logits, else the only tensor.
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
                f"the model answers with several things ({', '.join(named)}). Say which of them is to be measured, "
                f"as in output={(tensors or list(named))[0]!r} (--output on the command line)."
            )
        answer = named[name]
    if not isinstance(answer, Tensor):
        raise BadInput(
            f"the model answers with {type(answer).__name__}, not with a tensor. Wrap it in a module whose forward returns the "
            f"tensor to measure."
        )
    return answer


def _named_parts(answer: Any) -> dict[str, Any]:
    """The parts of an answer that have names: a dict, a ModelOutput, a dataclass."""
    if isinstance(answer, Mapping):
        return {str(key): part for key, part in answer.items()}
    if is_dataclass(answer) and not isinstance(answer, type):
        return {
            key.name: getattr(answer, key.name)
            for key in fields(answer)
            if getattr(answer, key.name) is not None
        }
    return dict(answer._asdict()) if hasattr(answer, "_asdict") else {}


def told_of(answer: Any, output: str | None = None) -> str | None:
    """What a user should know of how `tensor_of` chose; None where there was nothing to choose from."""
    named = _named_parts(answer)
    if isinstance(answer, tuple | list) and len(answer) > 1 and not named:
        place = (
            "the first" if output is None or not output.isdecimal() else f"number {output}, counted from 0,"
        )
        return f"the model answers with {len(answer)} things; {place} of them is measured"
    if len(named) > 1:
        chosen = tensor_of(answer, output)
        return f"the model answers with {', '.join(named)}; {next(name for name, part in named.items() if part is chosen)} is measured"
    return None


def check_unambiguous(answers: Sequence[tuple[int, Any]]) -> None:
    """BadInput where a model answers with a tuple in which another tensor than the first could be meant.

    answers: pairs of a number of inputs and what the model answered to them. A tensor could be meant if it holds floating numbers and its
    first axis is always that of the inputs. That of a state, as nn.GRU returns it beside its outputs, counts layers.
    """
    tuples = [
        (batch, answer)
        for batch, answer in answers
        if isinstance(answer, tuple | list) and not _named_parts(answer)
    ]
    if not tuples:
        return
    shared = set.intersection(
        *({place for place, part in enumerate(answer) if _per_input(part, batch)} for batch, answer in tuples)
    )
    answer = tuples[0][1]
    first = next((place for place, part in enumerate(answer) if part is not None), 0)
    if shared - {first}:
        kinds = ", ".join(f"{place}: {_kind(part)}" for place, part in enumerate(answer))
        raise BadInput(
            f"the model answers with {len(answer)} things ({kinds}), and more than one could be meant. Say which of them is to be "
            f"measured, by its place: output='{first}' (--output {first} on the command line)."
        )


def _per_input(part: Any, batch: int) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 0 and part.shape[0] == batch


def _kind(part: Any) -> str:
    return (
        " x ".join(map(str, part.shape)) or "one number" if isinstance(part, Tensor) else type(part).__name__
    )


def _reach_each_other(model: nn.Module, rows: Tensor) -> bool:
    """Whether a row that is no number changes the answer to another. No saturated layer hides that, as it may hide numbers."""
    answer = Adapter(model)(rows)
    for place in {0, len(rows) // 2, len(rows) - 1}:
        marked = rows.clone()
        marked[place] = torch.nan
        others = torch.arange(len(rows)) != place
        with contextlib.suppress(Exception):  # a model may refuse what is no number
            if not torch.equal(Adapter(model)(marked)[others], answer[others]):
                return True
    return False


class OutputOf(nn.Module):
    """A model that answers with several things, as one that answers with what `output` names."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model = model
        self.output = output

    def forward(self, *inputs: Tensor) -> Tensor:
        return tensor_of(self.model(*inputs), self.output)


class Adapter(nn.Module):
    """Normalises, turns time-first into batch-first, picks the output of a sequence model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        time_first: bool = False,
        pool: Pool | None = None,
        takes_lengths: bool = False,
        output: str | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.time_first = time_first
        self.pool = pool
        self.takes_lengths = takes_lengths
        self.output = output
        self.mean: Tensor | None
        self.std: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *shape) -> (batch, outputs)."""
        batch, length = x.shape[0], x.shape[1] if x.dim() > 1 else 1
        for what, value in (("mean", self.mean), ("std", self.std)):
            if value is not None and value.dim() >= x.dim():  # it would stand along the batch
                raise BadInput(
                    f"{what} has shape {tuple(value.shape)}, and an input has {x.dim() - 1} axes: it does not broadcast over one."
                )
        x = (
            x.clone() if self.mean is None else x - self.mean
        )  # fresh memory: the model may write into what it is given
        if self.std is not None:
            x = x / self.std
        if self.time_first:
            x = x.transpose(0, 1)
        if self.takes_lengths:
            # Inputs of different length never share a batch here, so every row is full.
            full = (
                torch.tensor([length] * batch)
                if isinstance(batch, int)
                else torch.full((batch,), length, dtype=torch.int64)
            )
            outputs = self.model(x, full)
        else:
            outputs = self.model(x)
        outputs = tensor_of(outputs, self.output)
        if self.pool is not None:
            outputs = self._pool_time(outputs)
        if outputs.dim() > 1:
            return outputs.flatten(1)
        dropped = isinstance(batch, int) and batch == 1  # by a squeeze() that was meant for other axes
        return outputs.unsqueeze(0 if dropped else 1)

    def _pool_time(self, outputs: Tensor) -> Tensor:
        """(batch, time, outputs), or (time, batch, outputs) -> (batch, outputs)."""
        time = 0 if self.time_first else 1
        if self.pool == "last":
            return outputs.select(time, -1)
        return outputs.mean(time) if self.pool == "mean" else outputs.amax(time)


class OneByOne(nn.Module):
    """A model whose file fixes the batch size at one, or knows no batch, mapped over a batch."""

    def __init__(self, model: nn.Module, *, keeps_axis: bool = True) -> None:
        super().__init__()
        self.model = model
        self.keeps_axis = keeps_axis  # the model wants a batch axis of one; else it wants none

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = torch.func.vmap(self.single, randomness="error")(x)
        return mapped

    def single(self, x: Tensor) -> Tensor:
        outputs = tensor_of(self.model(x.unsqueeze(0) if self.keeps_axis else x))
        plain = not self.keeps_axis
        answer: Tensor = (
            outputs
            if plain
            else outputs[0]
            if outputs.dim() > 1 and outputs.shape[0] == 1
            else outputs.flatten()
        )
        return answer


class InTurn(nn.Module):
    """A model whose file fixes the batch size, where mapping is not possible either: row after row."""

    def __init__(self, model: nn.Module, *, keeps_axis: bool = True) -> None:
        super().__init__()
        self.model = OneByOne(model, keeps_axis=keeps_axis)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.model.single(row) for row in x])


def map_over_batch(model: nn.Module, rows: Tensor) -> nn.Module:
    """A model that takes a batch of one only, over a batch: mapped where torch can, else row after row. Raises what the model does."""
    single = OneByOne(model)
    with torch.no_grad():
        truth = torch.stack([single.single(row) for row in rows])
        with contextlib.suppress(Exception):
            said = single(rows)
            if said.shape == truth.shape and torch.allclose(said, truth, rtol=1e-3, atol=1e-4):
                return single
    return InTurn(model)


def one_by_one(module: nn.Module) -> nn.Module | None:
    """What is asked one by one inside of an adapter; None where inputs share a batch."""
    inner = module.model if isinstance(module, Adapter) else None
    inner = inner.model if isinstance(inner, InTurn) else inner
    return inner.model if isinstance(inner, OneByOne) else None


class BlackBox(nn.Module):
    """Any function of numpy arrays, (n, *shape) -> (n, outputs). No gradients, no graph, nothing provable."""

    def __init__(self, function: Callable[[np.ndarray[Any, Any]], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        answer = np.asarray(self.function(x.detach().cpu().numpy()))
        if answer.ndim == 0 or answer.shape[0] != x.shape[0]:
            raise BadInput(
                f"the model's function returned shape {answer.shape} for {x.shape[0]} inputs; it must return one row for each input."
            )
        if not np.issubdtype(answer.dtype, np.number):
            raise BadInput(f"the model's function returned {answer.dtype}, expected numbers.")
        return torch.from_numpy(np.ascontiguousarray(answer)).to(x)


def for_any_batch(model: nn.Module, example: Tensor, *, fixed: int | None = None) -> nn.Module:
    """The model itself if it takes any batch size; else mapped over single rows, which is what its file allows.

    `fixed` is the batch size that the file declares. Where that is more than one, single rows must be answered as they are among others.
    """
    count = max(3, fixed or 0)
    rows = torch.randn(
        (count, *example.shape[1:]), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(example)
    single = OneByOne(model)
    with torch.no_grad():
        if fixed is not None and fixed > 1:
            _check_rows_apart(model, rows[:fixed])
        rows = rows[:3]
        truth = torch.stack([single.single(row) for row in rows])
        for candidate in (Adapter(model), single):
            try:
                said = candidate(rows)
            except Exception:  # whatever a model says to a batch that it was not made for
                continue
            if said.shape == truth.shape and torch.allclose(said, truth, rtol=1e-3, atol=1e-4):
                return model if candidate is not single else single
            if fixed is None and candidate is not single and said.shape == truth.shape:
                raise BadInput(
                    "the model answers differently when inputs share a batch, so no answer about one input has a meaning. Is the batch "
                    "axis really first (time_first=)? Does a layer work across the batch?"
                )
    return InTurn(model)


def _check_rows_apart(model: nn.Module, rows: Tensor) -> None:
    """Raise unless a model made for so many rows at once also takes one, and answers it as it does among the others."""
    fixed, single = len(rows), OneByOne(model)
    with contextlib.suppress(Exception):
        together, alone = Adapter(model)(rows), torch.stack([single.single(row).flatten() for row in rows])
        alike = together.shape == alone.shape and torch.allclose(together, alone, rtol=1e-3, atol=1e-4)
        if alike and not _reach_each_other(model, rows):
            return
    raise BadInput(
        f"the model takes exactly {fixed} inputs of shape {tuple(rows.shape[1:])} at once and does not answer them one by one. Export it "
        f"with a free batch axis, or with a batch of one; if all {fixed} together are one input, pass batched=False."
    )


def over_single_inputs(model: nn.Module, example: Tensor) -> nn.Module:
    """A model without a batch axis over a batch: mapped where torch can, else row after row."""
    single, rows = OneByOne(model, keeps_axis=False), torch.stack([example, example])
    with contextlib.suppress(Exception), torch.no_grad():
        if torch.allclose(single(rows)[0], single.single(example), rtol=1e-3, atol=1e-4):
            return single
    return InTurn(model, keeps_axis=False)

"""Check that a module is one recurrent layer between a front and a head that work element by element.

The user's code runs once on a batch of marked tensors: each records the meaning of its axes and what it
depends on. Every torch operation is intercepted, and only operations with a rule are allowed. An operation
that looks at values, at the number of rows or at the length, or that mixes rows or time steps, ends the
reading, also if the user's code catches the error. So the result holds for every batch, every length and
every value.

Nothing is compiled and the tensors hold real numbers, so code cannot detect compilation. A second reading
with other numbers must
use the same constants: values that influence the result by a way that torch does not see would change them.
Only code that deliberately detects the reading, for example by the exact type of its input, could still
behave differently.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from holdfast.monitor.structure.marks import Axis, Mark, Marked, Stage, UnreadableError, raw
from holdfast.monitor.structure.module_snapshot import ModuleSnapshot
from holdfast.monitor.structure.rules import RULES
from holdfast.network.recurrent import copy_module

Sizes = dict[Axis, int]
# Axis sizes of the two readings: any sizes that differ from each other and between the readings.
READINGS: tuple[Sizes, ...] = ({"batch": 3, "time": 5}, {"batch": 4, "time": 2})
HOMES: tuple[Any, ...] = (torch, Tensor, functional, torch._C._nn)


@dataclass(frozen=True)
class Structure:
    """Result of the reading: the module is one layer between front and head."""

    plain: bool  # the layer receives the elements unchanged
    affine: bool  # the head is an affine function of the state


class _Size:
    """The value behind the SymInt of an open axis size: it may be passed on, but not inspected."""

    def __init__(self, axis: Axis, reading: "Reading") -> None:
        self.axis, self.reading = axis, reading

    def __getattr__(self, name: str) -> Any:
        self.reading.end(f"looks at the size of its {self.axis}")


def read_structure(module: nn.Module, example: Callable[[int, int], Tensor]) -> Structure:
    """Read the structure of a module: (n, length) ids or (n, length, ...) frames -> (n, outputs).

    example: n, length -> a batch of inputs. Raises UnreadableError, or any error of the user's module.
    """
    if sum(isinstance(part, nn.RNNBase) for part in module.modules()) != 1:
        raise UnreadableError("has not exactly one recurrent layer")
    found = set()
    for reading, mark in _readings(module, example, ("batch", "time")):
        if mark.stage != "state" or reading.plain is None:
            reading.end("does not answer with a function of the last state")
        found.add(Structure(reading.plain and not reading.written, mark.affine and not reading.written))
    (structure,) = found
    return structure


def rows_apart(module: nn.Module, example: Callable[[int, int], Tensor]) -> bool:
    """Whether no row of a batch influences another's answer, for the example's length."""
    try:
        return all(mark.stage == "entry" for _, mark in _readings(module, example, ("batch",)))
    except Exception:  # the user's module may raise anything on marked tensors
        return False


def _readings(
    module: nn.Module, example: Callable[[int, int], Tensor], named: tuple[Axis, ...]
) -> Iterator[tuple["Reading", Mark]]:
    """Yield each reading with the mark of the answer (batch, outputs). named: leading open axes."""
    copied, tapes = copy_module(module), []
    layers = [part for part in copied.modules() if isinstance(part, nn.RNNBase)]
    if any("forward" in vars(layer) or type(layer) not in (nn.RNN, nn.LSTM, nn.GRU) for layer in layers):
        raise UnreadableError("has a layer with another forward")
    watched = ModuleSnapshot(copied)
    for sizes in READINGS:
        x = example(sizes["batch"], sizes["time"])
        with torch.no_grad():
            wanted = copied(x.clone())
            reading = Reading(layers, {axis: sizes[axis] for axis in named})
            with reading:
                answer = copied(
                    reading.mark_value(
                        x.clone(), Mark("entry", (*named, *(None for _ in x.shape[len(named) :])), plain=True)
                    )
                )
        reading.check()
        for layer in layers:
            del layer.__dict__["forward"]
        watched.check(reading.end)
        if not isinstance(answer, Marked) or answer.mark.axes != ("batch", None):
            reading.end("does not answer each row with its outputs")
        if wanted.shape != answer.raw.shape or not torch.allclose(wanted, answer.raw, rtol=1e-4, atol=1e-6):
            reading.end("answers otherwise while it is read")
        yield reading, answer.mark
        tapes.append(reading.tape)
    if not all(_same_tape(tape, tapes[0]) for tape in tapes):
        reading.end("computes its constants from the elements")


def _same_tape(one: list[Any], other: list[Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a is b or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))
        return a is b or (type(a) is type(b) and a == b)

    return len(one) == len(other) and all(map(same, one, other))


class Reading(TorchFunctionMode):
    """Intercepts every torch call of the user's code."""

    def __init__(self, layers: Sequence[nn.RNNBase], lengths: Sizes) -> None:
        super().__init__()
        self.lengths = lengths
        for layer in layers:
            layer.forward = partial(self._layer, layer)
        self.weights = {layer: [weight.clone() for weight in layer.parameters()] for layer in layers}
        self.why: str | None = None
        self.plain: bool | None = None  # set when the layer is called
        self.written = False  # a tensor was overwritten, so marks of aliases may be too optimistic
        self.sizes = {axis: torch.SymInt(_Size(axis, self)) for axis in lengths}
        self.tape: list[Any] = []  # every operation with its arguments other than elements

    def end(self, why: str) -> NoReturn:
        self.why = self.why or why
        raise UnreadableError(self.why)

    def check(self) -> None:
        """Raise the error again if the user's code caught it."""
        if self.why is not None:
            raise UnreadableError(self.why)

    def mark_value(self, found: Tensor, mark: Mark) -> Marked:
        sizes = tuple(
            self.lengths[axis] if axis else size for axis, size in zip(mark.axes, found.shape, strict=False)
        )
        if (
            len(mark.axes) != found.dim()
            or sizes != tuple(found.shape)
            or (mark.stage == "state" and "time" in mark.axes)
        ):
            self.end("mixes its axes")
        return Marked.of(found, mark, self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.check()
        seen = tree_flatten((args, kwargs))[0]
        if any(isinstance(x, slice) for x in seen):
            seen += [end for x in seen if isinstance(x, slice) for end in (x.start, x.stop, x.step)]
        if any(callable(x) and not isinstance(x, type) for x in seen):
            self.end("hands a function to torch")
        if not any(isinstance(x, Marked | torch.SymInt) for x in seen):
            return func(*args, **kwargs)
        getter = func.__name__ == "__get__" and getattr(func.__self__, "__objclass__", None) in (
            torch._C.TensorBase,
            Tensor,
        )
        name = f"get {func.__self__.__name__}" if getter else func.__name__
        rule = RULES.get(name)
        if rule is None or not (getter or any(getattr(home, name, None) == func for home in HOMES)):
            self.end(f"uses {name}, for which there is no rule")
        if kwargs.get("out") is not None:
            self.end("writes into a tensor")
        self.tape += [name, *(x for x in seen if not isinstance(x, Marked | torch.SymInt | slice))]
        try:
            return rule(self, func, args, kwargs)
        except UnreadableError:
            raise
        except Exception as error:  # the user's code could catch it and behave differently
            self.end(f"{name} failed ({error})")

    # ---- the layer

    def _layer(self, layer: nn.RNNBase, x: Any, hx: Any = None) -> Any:
        try:
            if "time" in self.lengths:
                return self._apply_per_step(layer, x, hx)
            return self._apply_per_row(layer, x, hx)
        except Exception as error:
            self.end(f"its layer failed ({error})")

    def _apply_per_step(self, layer: nn.RNNBase, x: Any, hx: Any) -> Any:
        """A unidirectional layer that reads the elements in order."""
        axes: tuple[Axis, ...] = ("batch", "time", None) if layer.batch_first else ("time", "batch", None)
        if self.plain is not None:
            self.end("runs its layer twice")
        if not isinstance(x, Marked) or x.mark.stage != "entry" or x.mark.axes != axes:
            self.end("its layer does not read element by element")
        if any(part.mark.stage != "constant" for part in self._first(hx)):
            self.end("its first state is not the same for all rows")
        outputs, final = self._run_layer(layer, x, hx)
        self.plain = x.mark.plain
        state = tree_map(
            lambda part: self.mark_value(part, Mark("state", (None, "batch", None), affine=True)), final
        )
        return self.mark_value(outputs, Mark("outputs", axes, affine=True)), state

    def _apply_per_row(self, layer: nn.RNNBase, x: Any, hx: Any) -> Any:
        """A layer of any direction; only rows must stay separate."""
        axes: tuple[Axis, ...] = ("batch", None, None) if layer.batch_first else (None, "batch", None)
        if not isinstance(x, Marked) or x.mark.axes != axes:
            self.end("its layer does not read row by row")
        self._first(hx)
        outputs, final = self._run_layer(layer, x, hx)
        state = tree_map(lambda part: self.mark_value(part, Mark("entry", (None, "batch", None))), final)
        return self.mark_value(outputs, Mark("entry", axes)), state

    def _first(self, hx: Any) -> tuple[Marked, ...]:
        first = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if not all(isinstance(part, Marked) and part.mark.axes == (None, "batch", None) for part in first):
            self.end("its first state is not one for each row")
        return first

    def _run_layer(self, layer: nn.RNNBase, x: Marked, hx: Any) -> Any:
        with torch._C.DisableTorchFunction():
            same = all(
                torch.equal(a, b) for a, b in zip(self.weights[layer], layer.parameters(), strict=True)
            )
            if layer.training or not same:
                self.end("its layer trains, or its weights change")
            return type(layer).forward(layer, x.raw, tree_map(raw, hx))

    # ---- helpers of rules

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call the operation on plain tensors, with the axis sizes of this batch."""
        args, kwargs = tree_map(
            lambda x: self.lengths[x.node.axis] if isinstance(x, torch.SymInt) else raw(x), (args, kwargs)
        )
        return func(*args, **kwargs)

    def no_sizes(self, args: Any, kwargs: Any) -> None:
        if any(isinstance(x, torch.SymInt) for x in tree_flatten((args, kwargs))[0]):
            self.end("computes with a size")

    def first(self, args: Any, kwargs: Any) -> Marked:
        """Return the tensor that a rule is about; all other arguments must be unmarked."""
        if (
            not args
            or not isinstance(args[0], Marked)
            or any(isinstance(x, Marked) for x in tree_flatten((args[1:], kwargs))[0])
        ):
            self.end("uses elements in an unknown place")
        return args[0]

    def stage(self, tensors: Iterable[Any]) -> Stage:
        found: set[Stage] = {x.mark.stage for x in tensors if isinstance(x, Marked)} - {"constant"}
        if len(found) > 1:
            self.end(f"mixes {' and '.join(sorted(found))}")
        return found.pop() if found else "constant"

    def broadcast(self, tensors: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Return the axes of a broadcast result. Unmarked tensors must not vary along open axes."""
        axes: list[Axis] = []
        for back in range(1, max(x.dim() for x in map(raw, tensors)) + 1):
            here = [x for x in tensors if raw(x).dim() >= back]
            names = {x.mark.axes[-back] for x in here if isinstance(x, Marked)} - {None}
            if len(names) > 1:
                self.end("mixes its axes")
            name: Axis = names.pop() if names else None
            for x in here:
                if (
                    name
                    and (not isinstance(x, Marked) or x.mark.axes[-back] is None)
                    and raw(x).shape[-back] != 1
                ):
                    self.end(f"treats the {name} in its own way")
            axes.append(name)
        return tuple(reversed(axes))

    def own(self, x: Marked, dims: Any) -> list[int]:
        """Return the axes that a rule works along, which must be fixed ones."""
        given = dims if isinstance(dims, tuple | list) else (dims,)
        if any(isinstance(d, bool) or not isinstance(d, int) for d in given):
            self.end("works along all axes at once")
        found = [d % len(x.mark.axes) for d in given]
        if not found or any(x.mark.axes[d] is not None for d in found):
            self.end("works along rows or places")
        return found

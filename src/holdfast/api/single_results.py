"""What the public functions return that is no list: a verdict, generated tests and a saliency map, which print as a
table or a sentence and become a data frame.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from holdfast.api.printed_table import (
    PrintedTable,
    data_frame,
    make_table,
    plain,
    plural,
)
from holdfast.coverage.testgen import Tests
from holdfast.formatting import format_nearest
from holdfast.verification.verify import Verdict


@dataclass(frozen=True, repr=False)
class Verification(Verdict):
    """The verdict of `hf.verify`; it prints as its answer and what shows it."""

    def summary(self) -> str:
        """The answer in a sentence."""
        from holdfast.report.answer_sentence import INSTANCE_ANSWERS

        if self.answer == "timeout":
            return f"{INSTANCE_ANSWERS['unknown']} The time ran out."
        return INSTANCE_ANSWERS[self.answer]

    def to_frame(self) -> Any:
        """The verdict as a pandas DataFrame with one row."""
        row = {"answer": self.answer, "least": self.least, "lowest": self.lowest, "nodes": self.nodes}
        return data_frame([{**row, "seconds": self.seconds, "note": self.note}])

    def __str__(self) -> str:
        lines = [f"{self.answer}: {self.summary()}"]
        if self.witness is not None:
            lines += [f"input:   {_numbers(self.witness)}"]
        if self.outputs is not None:
            lines += [f"outputs: {_numbers(self.outputs)}"]
        if self.answer in ("timeout", "unknown"):
            low, high = (plain(format_nearest(value)) for value in (self.least, self.lowest))
            lines += [f"smallest score: between {low} (proved) and {high} (found)"]
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _numbers(values: Tensor) -> str:
    shown = values.flatten().tolist()
    more = f", ... ({len(shown)} numbers)" if len(shown) > 8 else ""
    return ", ".join(f"{value:.6g}" for value in shown[:8]) + more


def verification_of(verdict: Verdict) -> Verification:
    """The same verdict, with a readable face."""
    return Verification(**{one.name: getattr(verdict, one.name) for one in fields(Verdict)})


@dataclass(frozen=True, eq=False, repr=False)
class GeneratedTests(Tests):
    """The tests of `hf.testgen`; they print as a table with the coverage below."""

    def table(self) -> PrintedTable:
        """One line for each test."""
        rows = [
            {
                "test": str(k),
                "seed": str(int(self.seed[k])),
                "changed": str(int(self.changed[k])),
                "class of seed": str(int(self.seed_class[k])),
                "class of test": str(int(self.new_class[k])),
                " ": "<- adversarial" if bool(self.adversarial[k]) else "",
            }
            for k in range(len(self))
        ]
        return make_table(rows, ("test", "seed", "changed"))

    def summary(self) -> str:
        """How many tests there are, and what they add to the coverage."""
        return (
            f"{plural(len(self), 'test')} ({int(self.adversarial.sum())} adversarial) raise "
            f"{self.criterion} coverage from "
            f"{self.before:.1%} to {self.after:.1%} of {self.total.items} items."
        )

    def to_frame(self) -> Any:
        """One row for each test, as a pandas DataFrame."""
        names = ("seed", "changed", "seed_class", "new_class", "adversarial")
        return data_frame(
            [{"test": k, **{name: getattr(self, name)[k].item() for name in names}} for k in range(len(self))]
        )

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}" if len(self) else self.summary()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{self.table().to_html()}<p>{html.escape(self.summary())}</p>"


def generated_tests(found: Tests) -> GeneratedTests:
    """The same tests, with a readable face."""
    return GeneratedTests(**{one.name: getattr(found, one.name) for one in fields(Tests) if one.init})


class SaliencyMap(Tensor):
    """(inputs, *unit shape): how far changing each unit alone can lower the margin; NaN where a unit may not
    change.

    It is a tensor. What is computed from it (a row, a sum) is a plain tensor.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def summary(self) -> str:
        """The unit of each input that matters most."""
        parts = []
        for place, row in enumerate(self.flatten(1).tolist()[:5]):
            known = [(value, k) for k, value in enumerate(row) if not math.isnan(value)]
            if known:
                value, k = max(known)
                at = tuple(int(i) for i in torch.unravel_index(torch.tensor(k), tuple(self.shape[1:])))
                parts.append(
                    f"input {place}: unit {at if len(at) > 1 else at[0]} lowers the margin by {value:.4g}"
                )
        more = len(self) - len(parts)
        text = "; ".join(parts) if parts else "No unit may change"
        return f"{text}{f'; and {more} more inputs' if parts and more > 0 else ''}."

    def to_frame(self) -> Any:
        """One row for each unit of each input, as a pandas DataFrame."""
        rows = []
        for place, values in enumerate(self.flatten(1).tolist()):
            for k, value in enumerate(values):
                at = [int(i) for i in torch.unravel_index(torch.tensor(k), tuple(self.shape[1:]))]
                axes = (
                    {f"axis{axis}": i for axis, i in enumerate(at)}
                    if len(at) > 1
                    else {"unit": at[0] if at else 0}
                )
                rows.append({"input": place, **axes, "saliency": value})
        return data_frame(rows)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        values = repr(self.as_subclass(Tensor))
        return f"{values}\n{self.summary()}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return saliency_map, (self.as_subclass(Tensor),)


def saliency_map(values: Tensor) -> SaliencyMap:
    """The same numbers, with a readable face."""
    found: SaliencyMap = values.as_subclass(SaliencyMap)
    return found

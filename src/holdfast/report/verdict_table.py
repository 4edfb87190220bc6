"""Verdicts of `verify` in the terminal: one in the VNN-COMP format, many as a table.

Only the command line imports this module.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from holdfast.foreign_text import printable
from holdfast.formatting import format_bounds
from holdfast.network import Network
from holdfast.verification import Instance, Verdict
from holdfast.verification.instances import contradicts


def competition(found: Verdict, net: Network, judges: Sequence[Network]) -> Iterator[str]:
    """Yield the answer, the counterexample, and remarks as lines that begin with a semicolon."""
    yield found.answer
    if found.values:  # the format of VNN-LIB 2
        for tensor, numbers in found.values:
            yield f"{tensor.name} {tensor.kind} [{','.join(map(str, tensor.shape))}]"
            yield "\n".join(map(repr, numbers))
    elif found.witness is not None and found.outputs is not None:
        inputs = [f"(X_{i} {value!r})" for i, value in enumerate(found.witness.flatten().tolist())]
        outputs = [f"(Y_{i} {value!r})" for i, value in enumerate(found.outputs.tolist())]
        yield "(" + "\n".join([*inputs, *outputs]) + ")"
    yield from (f"; {printable(text)}" for text in _remarks(found, net, judges))


def _remarks(found: Verdict, net: Network, judges: Sequence[Network]) -> Iterator[str]:
    yield from net.notes
    if found.note:
        yield found.note
    if found.answer == "sat":
        places = [
            f"in its own arithmetic ({str(net.dtype).removeprefix('torch.')})",
            "in float64",
            *(["by onnxruntime"] if judges else []),
        ]
        yield f"replayed through {net.name}: {', '.join(places)}"
    elif found.answer == "unsat":
        yield "proved in float64, rounding errors included"
        yield from (
            f"where {assumption}" for assumption in (found.evidence.assumptions if found.evidence else ())
        )
    else:
        least, lowest = format_bounds(found.least, found.lowest, 6)
        yield (
            f"the smallest score lies between {least} (proved) and {lowest} (reached); "
            "a score of at most 0 would be sat"
        )
    yield f"{found.nodes} subproblems bounded, {found.seconds:.2f} s"


@dataclass(frozen=True)
class InstanceLine:
    """One instance of a list. found: its verdict, or as text the error in its files."""

    instance: Instance
    found: Verdict | str
    expected: str = ""

    @property
    def answer(self) -> str:
        return "error" if isinstance(self.found, str) else self.found.answer

    @property
    def seconds(self) -> float:
        return 0.0 if isinstance(self.found, str) else self.found.seconds

    @property
    def wrong(self) -> bool:
        return contradicts(self.answer, self.expected)

    def shown(self) -> Text:
        network, spec = self.instance.name
        style = "red" if self.wrong or self.answer == "error" else ""
        note = self.found if isinstance(self.found, str) else self.found.note
        remark = f"  (the key says {self.expected})" if self.wrong else f"  {printable(note)}" if note else ""
        return Text(
            f"{printable(network)} {printable(spec)}: {self.answer} {self.seconds:.2f} s{remark}", style=style
        )


def verdict_table(lines: Sequence[InstanceLine], asked: int) -> Table:
    """Build the table of counts by answer, with the comparison with the key."""
    view = Table("answer", "instances", "seconds, mean", "seconds, most", caption_justify="left")
    for answer, count in Counter(line.answer for line in lines).most_common():
        spent = [line.seconds for line in lines if line.answer == answer]
        view.add_row(answer, str(count), f"{sum(spent) / count:.2f}", f"{max(spent):.2f}")
    solved = sum(line.answer in ("sat", "unsat") for line in lines)
    view.caption = f"{solved} of {asked} solved"
    if any(line.expected for line in lines):
        agreed = sum(line.answer == line.expected.rstrip("?") for line in lines)
        view.caption += f"; {agreed} agree with the key, {sum(line.wrong for line in lines)} contradict it"
    return view

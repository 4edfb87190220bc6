"""The terminal table of output ranges.

Only the command line imports this module, because importing rich is slow.
"""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from holdfast.formatting import format_bounds, format_upper, shorten
from holdfast.network import Network
from holdfast.verification import Range

SHOWN = 8  # Numbers of a counterexample that fit on one line of 80 characters.


def range_table(found: Sequence[Range], names: Mapping[int, str], classes: Sequence[str] = ()) -> Table:
    """Build the table. names: names of the boxes, if any. classes: names of the outputs."""
    several = bool(names) or found[-1].box > 0
    view = Table(caption_justify="left")
    for column in (["input" if names else "box"] if several else []) + ["output", "smallest", "largest"]:
        bounds = column in ("smallest", "largest")  # two long numbers share a cell, on two lines if need be
        view.add_column(column, justify="right", no_wrap=not bounds, overflow="fold")
    view.add_column("gap", justify="right")
    for r in found:
        which = [Text(shorten(names.get(r.box, str(r.box))))] if several else []
        smallest, largest, output = (
            r.minimum,
            r.maximum,
            shorten(classes[r.output]) if classes else str(r.output),
        )
        view.add_row(
            *which,
            Text(output),
            *(" .. ".join(format_bounds(b.lower.value, b.upper.value, 6)) for b in (smallest, largest)),
            format_upper(r.gap, 2),
            style="" if r.closed else "yellow",
        )
    closed = sum(r.closed for r in found)
    known = f"{closed} of {len(found)} known to {found[0].tolerance:g}."
    view.caption = (
        f"{known} Values stay between the outer numbers (proved); inputs reach the inner ones (witnessed)."
    )
    return view


def range_remarks(found: Sequence[Range], net: Network) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of the lines below the table."""
    for note in dict.fromkeys([*net.notes, *(r.note for r in found if r.note)]):
        yield "note", note
    most = max(max(r.widened) for r in found)
    if most:
        own = str(net.dtype).removeprefix("torch.")
        yield (
            "note",
            f"proved bounds were widened by up to {format_upper(most, 2)} to enclose outputs that the "
            f"network computed in {own}",
        )
    if len(found) == 1 and found[0].low_at.numel() <= SHOWN:
        for kind, at in (("smallest at", found[0].low_at), ("largest at", found[0].high_at)):
            yield kind, ", ".join(f"{value:.6g}" for value in at.flatten().tolist())
    queries, seconds = sum(r.queries for r in found), sum(r.seconds for r in found)
    yield "work", f"{max(r.nodes for r in found)} subproblems bounded, {queries} queries, {seconds:.2f} s"

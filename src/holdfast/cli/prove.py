"""`holdfast prove`: the claims of a run as files that `holdfast-check` accepts. The run is only read."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast.api.check import claims, shows
from holdfast.api.prove import Certificate, certificates
from holdfast.cli.check import command_again, stored_rows
from holdfast.cli.run import Built
from holdfast.cli.views.output import line
from holdfast.errors import BadInput
from holdfast.result import Key, Record
from holdfast.store import Store

ABLE = "radius", "worst", "verify", "reach"
NOTHING = 3  # exit code: some claims have no certificate


def prove(
    run: Path, files: Mapping[str, str], out: Path, only: Sequence[int], seconds: float | None, trust: bool, console: Console
) -> None:
    """One line a claim, and how many there are."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    made = list[Certificate]()
    with Store.read(run) as store:
        begun = store.question
        if begun.command not in ABLE:
            raise BadInput(f"'holdfast {begun.command}' proves nothing that has a certificate; {', '.join(ABLE[:-1])} and {ABLE[-1]} do.")
        command = command_again(begun, files, trust)
        built = command.build()
        whole = {record.key: record for record in store.sifted() if isinstance(record, Record)}
        wanted = {key for key, record in whole.items() if (not only or key.index in only) and (claims(record) or shows(record))}
        if not wanted:
            known = sorted({key.index for key in whole})
            raise BadInput(f"{run}: nothing is proved or witnessed of these inputs; the run has records of {known[:10]}.")
        out.mkdir(parents=True, exist_ok=True)
        for part in command.portions(built):
            for one in _of(part, store, {key: whole[key] for key in wanted}, out, until):
                made.append(one)
                _show(one, console)
    _close(made, out, console)


def _of(part: Built, store: Store, wanted: Mapping[Key, Record], out: Path, until: float) -> Iterator[Certificate]:
    model = _file_of(part)
    for problem in part.problems:
        for some, records in stored_rows(store, problem, wanted):
            rows = some.to(problem.region.centre.device)
            yield from certificates(problem.take(rows), {record.key: record for record in records}, out, model, until)


def _file_of(part: Built) -> Path | None:
    """The .onnx file of the network, where it was read from one and nothing was put before it."""
    asked = part.extra
    named = asked.last[0] if getattr(asked, "last", None) else getattr(getattr(part.question.model, "prepared", None), "model", None)
    path = Path(str(named or part.question.options.get("network", {}).get("model", "")))
    return path if path.name.endswith((".onnx", ".onnx.gz")) and path.is_file() else None


def _show(one: Certificate, console: Console) -> None:
    head = f"input {one.key}, {one.kind}: "
    if one.file is None:
        console.print(Text.assemble((head, "bold"), ("no certificate", "yellow"), f", {one.reason}"), soft_wrap=True)
        return
    told = f"{one.file.name}, {one.size} bytes, {one.told}"
    console.print(Text.assemble((head, "bold"), ("written", "green"), f", {told}"), soft_wrap=True)


def _close(made: Sequence[Certificate], out: Path, console: Console) -> None:
    written = [one for one in made if one.file is not None]
    models = sorted({str(one.model) for one in written})
    line(console, "written", f"{len(written)} of {len(made)} claims into {out}", warns=len(written) < len(made))
    for model in models:
        line(console, "check them", f"holdfast-check {model} {out}/*.proof {out}/*.witness")
    if len(written) < len(made):
        sys.exit(NOTHING)

"""`holdfast prove` and the option --certificates: write certificates of a run for `holdfast-check`."""

import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast import time_limit
from holdfast.certificates.writing import Certificate, iterate_certificates
from holdfast.cli.views.output import line
from holdfast.commands.built import Built
from holdfast.commands.check import build_again, stored_rows
from holdfast.commands.command import Command
from holdfast.commands.verify import Instances
from holdfast.errors import BadInput, HoldfastError
from holdfast.foreign_text import printable
from holdfast.formatting import format_percent
from holdfast.result import Key, Record, has_proof, has_witness
from holdfast.store import Store
from holdfast_check.claim_text import ClaimNames

ABLE = "radius", "worst", "verify", "reach"  # Commands whose results can have certificates.
SOME_WITHOUT_CERTIFICATE = 3  # Exit code: some claims have no certificate.
PROOFS = "proofs"  # Default folder of certificates, in the folder of the run.
FEW = (
    5  # Claims without a certificate that are printed one by one at the end of a run; others by their reason.
)


def prove(
    run: Path,
    files: Mapping[str, str],
    out: Path,
    only: Sequence[int],
    seconds: float | None,
    trust: bool,
    console: Console,
) -> None:
    """Write the certificates, with one line for each claim, and exit with NOTHING if some have none."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    made = list[Certificate]()
    with Store.read(run) as store:
        begun = store.question
        if begun.command not in ABLE:
            raise BadInput(
                f"'holdfast {begun.command}' has no results with certificates; {', '.join(ABLE[:-1])} "
                f"and {ABLE[-1]} do."
            )
        command, built = build_again(begun, files, trust)
        wanted = {
            key: record for key, record in _provable_records(store).items() if not only or key.index in only
        }
        if not wanted:
            known = sorted(
                {record.key.index for record in store.iterate_readable() if isinstance(record, Record)}
            )
            raise BadInput(
                f"{run}: these inputs have no proved bound and no counterexample; the run has records of "
                f"{known[:10]}."
            )
        out.mkdir(parents=True, exist_ok=True)
        try:
            for part in command.portions(built):
                for one in _of(part, store, wanted, out, until):
                    made.append(one)
                    _show(one, console)
        except KeyboardInterrupt:
            _close(made, out, console)
            raise
    if not _close(made, out, console):
        sys.exit(SOME_WITHOUT_CERTIFICATE)


def certify_finished_run(
    command: Command, built: Built, store: Store, begun: float, console: Console
) -> None:
    """--certificates: write the certificates of a run that has just ended, in the time that is left.

    A missing certificate is reported and does not change the exit code.

    Args:
        begun: time.monotonic() at the beginning of the search.
    """
    wanted, out, made = _provable_records(store), store.folder / PROOFS, list[Certificate]()
    until = begun + _seconds(built) if built.problems else math.inf  # Otherwise each part has its own limit.
    if not wanted:
        line(console, "certificates", "no bound is proved and there is no counterexample: nothing to write")
        return
    if time.monotonic() >= until:
        again = f"holdfast prove {shlex.quote(str(store.folder))} -o {shlex.quote(str(out))}"
        line(
            console,
            "certificates",
            f"no time was left: give more --seconds, or write them now with: {again}",
            warns=True,
        )
        return
    out.mkdir(parents=True, exist_ok=True)
    try:
        for part in command.portions(built):
            end = until if part is built else _own_end(part, wanted)
            with time_limit.within(end):
                for one in _of(part, store, wanted, out, end):
                    made.append(one)
                    if one.kind == "proof":
                        store.put_certificate(one.key, None if one.file is None else one.value, one.reason)
    except KeyboardInterrupt:
        _close(made, out, console)
        raise
    except (
        HoldfastError
    ) as error:  # For example an unreadable file of a list, whose instance has no result either.
        line(console, "certificates", str(error), warns=True)
    _show_refused([one for one in made if one.file is None], console)
    _close(made, out, console)


def _provable_records(store: Store) -> dict[Key, Record]:
    """The intact records with a proved bound or a counterexample."""
    return {
        record.key: record
        for record in store.iterate_readable()
        if isinstance(record, Record) and (has_proof(record) or has_witness(record))
    }


def _own_end(part: Built, records: Mapping[Key, Record]) -> float:
    """The deadline of a part with its own limit: now plus the seconds that its search left."""
    spent = sum(records[key].seconds for problem in part.problems for key in problem.keys if key in records)
    return time.monotonic() + _seconds(part) - spent


def _seconds(part: Built) -> float:
    each = None if part.stop.each is None else part.stop.each * sum(map(len, part.problems))
    return min((seconds for seconds in (part.stop.seconds, each) if seconds is not None), default=math.inf)


def _of(
    part: Built, store: Store, wanted: Mapping[Key, Record], out: Path, until: float
) -> Iterator[Certificate]:
    model = _file_of(part)
    for problem in part.problems:
        for some, records in stored_rows(store, problem, wanted):
            rows = some.to(problem.region.centre.device)
            names = _names_of(store, [record.key for record in records])
            yield from iterate_certificates(
                problem.take(rows), {record.key: record for record in records}, out, model, until, names
            )


def _names_of(store: Store, keys: Sequence[Key]) -> dict[Key, ClaimNames]:
    """The labels of inputs and outputs that the run stored."""
    return {
        key: ClaimNames.from_json(body["names"] or None, int(body["inputs"]), int(body["outputs"]))
        for key, body in store.claims(keys).items()
    }


def _file_of(part: Built) -> Path | None:
    """The .onnx file of the network, if it was read from one without preprocessing."""
    asked = part.extra
    named = asked.model_file if isinstance(asked, Instances) else None
    path = Path(str(named or part.question.options.get("network", {}).get("model", "")))
    return path if path.name.endswith((".onnx", ".onnx.gz")) and path.is_file() else None


def _show(one: Certificate, console: Console) -> None:
    head = f"input {one.key}, {one.kind}: "
    if one.file is None:
        console.print(
            Text.assemble((head, "bold"), ("no certificate", "yellow"), f", {printable(one.reason)}"),
            soft_wrap=True,
        )
        return
    told = f"{one.file.name}, {one.size} bytes, {one.told}"
    console.print(Text.assemble((head, "bold"), ("written", "green"), f", {told}"), soft_wrap=True)


def _show_refused(refused: Sequence[Certificate], console: Console) -> None:
    """Print the reason of each claim without a certificate; of more than FEW, the others counted by reason."""
    for one in refused[:FEW]:
        _show(one, console)
    for reason, count in Counter(one.reason for one in refused[FEW:]).items():
        what = "claim" if count == 1 else "claims"
        line(console, f"{count} more {what}", f"no certificate, {printable(reason)}", warns=True)


def _close(made: Sequence[Certificate], out: Path, console: Console) -> bool:
    """Print the number of certificates and the command that checks them; whether every claim has one."""
    written = [one for one in made if one.file is not None]
    models = {str(one.model): set[str]() for one in written}
    for one in written:
        models[str(one.model)].add(f"{out}/*.{one.kind}")
    share = f" ({format_percent(len(written) / len(made))})" if made else ""
    line(
        console,
        "written",
        f"{len(written)} of {len(made)} claims into {out}{share}",
        warns=len(written) < len(made),
    )
    for model, files in sorted(models.items()):
        line(console, "check them", f"holdfast-check {model} {' '.join(sorted(files))}")
    return len(written) == len(made)

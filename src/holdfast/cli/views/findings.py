"""Print the findings of a check, and exit with the code of the worst."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

import holdfast
from holdfast.cli.views.output import line
from holdfast.commands.check import SUMMARY, CheckResult, CheckSettings, findings
from holdfast.evidence.finding import Finding, State
from holdfast.foreign_text import printable
from holdfast.report.writing import write_document

CODES: dict[State, int] = {"ok": 0, "differs": 1, "unchecked": 2}
STYLES: dict[State, str] = {"ok": "green", "differs": "bold red", "unchecked": "yellow"}
SHOWN = 10  # Details of a finding on the terminal; --out writes all of them.


def show_check(run: Path, wanted: CheckSettings, out: Path | None, console: Console) -> None:
    """Print every finding when it is known, and exit with the code of the worst."""
    report_findings(findings(run, wanted), "check", {"run": str(run)}, wanted, out, console)


def report_findings(
    found_in_turn: Iterable[Finding],
    what: str,
    about: Mapping[str, str],
    wanted: CheckSettings,
    out: Path | None,
    console: Console,
) -> None:
    """Print every finding when it is known, write them as JSON, and exit with the code of the worst."""
    found: list[Finding] = []
    for one in found_in_turn:
        found.append(one)
        console.print(
            Text.assemble(
                (f"{one.what}: ", "bold"), (one.state, STYLES[one.state]), f", {printable(one.told)}"
            ),
            soft_wrap=True,
        )
        for detail in one.details[:SHOWN]:
            console.print(Text(f"  {printable(detail)}"), soft_wrap=True)
        if len(one.details) > SHOWN:
            console.print(
                Text(f"  ... and {len(one.details) - SHOWN} more; --out FILE names them"), soft_wrap=True
            )
    state = CheckResult(tuple(found)).state
    if out is not None:
        said = {**about, "answer": SUMMARY[state], "holdfast": holdfast.__version__, "wanted": asdict(wanted)}
        line(
            console,
            "written",
            str(
                write_document(
                    json.dumps({**said, "findings": [asdict(one) for one in found]}, indent=1), out
                )
            ),
        )
    line(console, what, SUMMARY[state], warns=state != "ok")
    if CODES[state]:
        sys.exit(CODES[state])

"""`holdfast gate`. Exit code 0: the run is accepted. 1: rejected. 2: it cannot be judged."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.views.compare import open_runs
from holdfast.cli.views.output import line, paragraph
from holdfast.question_text import describe_question
from holdfast.report.gate import Decision, Rules
from holdfast.report.gate import gate as judge
from holdfast.report.gate_files import as_json, junit, summary
from holdfast.report.writing import write_document

SHOWN = 10  # Details of a failed check on the terminal; files hold all of them.
DOCUMENTS: dict[str, Callable[[Decision], str]] = {  # Formats of the output files, by option.
    "junit": junit,
    "markdown": summary,
    "json": lambda decision: json.dumps(as_json(decision), indent=1),
}


def gate(
    run: Path,
    rules: Rules,
    part: str | None,
    against: Path | None,
    files: Mapping[str, Path | None],
    console: Console,
) -> None:
    judged, *baseline = open_runs([run] if against is None else [run, against], part)
    decision = judge(judged, rules, baseline[0] if baseline else None)
    paragraph(console, "question", describe_question(judged.question))
    view = Table("", "check", "wanted", "found")
    for check in decision.checks:
        mark = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        view.add_row(mark, Text(check.name), Text(check.wanted), Text(check.found))
    console.print(view, highlight=False)
    for check in decision.checks:
        for detail in check.details[: SHOWN if not check.passed else 0]:
            line(console, check.name, detail, warns=True)
        if not check.passed and len(check.details) > SHOWN:
            line(
                console,
                check.name,
                f"... and {len(check.details) - SHOWN} more; --markdown and --junit name them",
                warns=True,
            )
    for kind, path in files.items():
        if path is not None:
            line(console, "written", str(write_document(DOCUMENTS[kind](decision), path)))
    line(console, "gate", "passed" if decision.passed else "FAILED", warns=not decision.passed)
    if not decision.passed:
        sys.exit(1)

"""A gate's decision as JUnit XML, Markdown for pull requests, and JSON."""

import re
from typing import Any
from xml.etree import ElementTree as xml

from holdfast.foreign_text import printable
from holdfast.question_text import describe_question
from holdfast.report import markdown
from holdfast.report.gate import Check, Decision
from holdfast.report.verdict import VerdictCounts

MOST_NAMED = 50  # Inputs listed for each check; GitHub limits a summary to 1 MB.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(decision: Decision) -> str:
    """Return JUnit XML with one test case for each check, which fails exactly if the check does."""
    failed = sum(not check.passed for check in decision.checks)
    suite = xml.Element(
        "testsuite",
        name="holdfast gate",
        tests=str(len(decision.checks)),
        failures=str(failed),
        errors="0",
        skipped="0",
    )
    for check in decision.checks:
        case = xml.SubElement(
            suite, "testcase", classname=_clean(f"holdfast.{decision.run.name}"), name=_clean(check.name)
        )
        result = f"wanted {check.wanted}; found {check.found}"
        if not check.passed:
            xml.SubElement(case, "failure", message=_clean(result)).text = _clean(
                "\n".join(_input_names(check))
            )
        else:
            xml.SubElement(case, "system-out").text = _clean("\n".join([result, *_input_names(check)]))
    root = xml.Element("testsuites")
    root.append(suite)
    xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Replace control characters that XML does not allow."""
    return NOT_XML.sub("?", text)


def _input_names(check: Check) -> list[str]:
    rest = len(check.details) - MOST_NAMED
    return [*check.details[:MOST_NAMED], *([f"... and {rest} more"] if rest > 0 else [])]


def summary(decision: Decision) -> str:
    """Return Markdown for a pull request: the decision, the checks, and the inputs that count against the
    run.
    """
    head = f"## Robustness gate: {'passed' if decision.passed else 'FAILED'}"
    against = f", against `{_code(decision.baseline.name)}`" if decision.baseline else ""
    about = f"Run `{_code(decision.run.name)}` of `{_code(decision.run.model or 'the network')}`{against}."
    rows = [
        ["pass" if c.passed else "**FAIL**", *(markdown.text(part) for part in (c.name, c.wanted, c.found))]
        for c in decision.checks
    ]
    asked = markdown.text(describe_question(decision.run.question), markdown.SENTENCE)
    parts = [head, about, asked, markdown.table(["", "check", "wanted", "found"], rows)]
    parts += [_list(check) for check in decision.checks if check.details]
    proved, shown = ("Lower", "upper") if decision.run.sense.rises else ("Upper", "lower")
    meaning = (
        "Unknown inputs are not certified, and without --max-unknown they count as broken. "
        f"{proved} bounds are proved, {shown} bounds are "
        f"witnessed by concrete inputs."
    )
    return "\n\n".join([*parts, meaning]) + "\n"


def _code(text: str) -> str:
    return printable(" ".join(text.replace("`", "'").split()))


def _list(check: Check) -> str:
    lines = "\n".join(f"- {markdown.text(line)}" for line in _input_names(check))
    return (
        f"<details><summary>{markdown.text(check.name)}: {len(check.details)} inputs to look "
        f"at</summary>\n\n{lines}\n\n</details>"
    )


def counts_of(found: VerdictCounts) -> dict[str, int]:
    return {
        "certified": found.certified,
        "broken": found.broken,
        "unknown": found.unknown,
        "unanswered": found.silent,
        "not_measured": found.not_measured,
    }


def as_json(decision: Decision) -> dict[str, Any]:
    """Return the decision in the format of docs/schema/gate.schema.json."""
    found = decision.tally
    return {
        "format": 1,
        "passed": decision.passed,
        "run": decision.run.name,
        "model": decision.run.model,
        "baseline": None if decision.baseline is None else decision.baseline.name,
        "part": decision.run.part.name,
        "goal": next((row.goal for row in decision.run.rows), None),
        "at": decision.rules.at,
        "counts": None if found is None else counts_of(found),
        "checks": [
            {
                "name": c.name,
                "passed": c.passed,
                "wanted": c.wanted,
                "found": c.found,
                "inputs": list(c.details),
            }
            for c in decision.checks
        ],
    }

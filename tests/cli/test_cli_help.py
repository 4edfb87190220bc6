"""Help pages, the start screen and the report of an internal error."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from cli_workshop import Ask

from holdfast import __version__
from holdfast.cli import app, help_pages, main

DOCS = Path(__file__).parents[2] / "docs"


def commands(command: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The names and the object of every command and group."""
    command = typer.main.get_command(app) if command is None else command
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


EVERY = [names for names, _ in commands()]
SINGLE = [names for names, command in commands() if not hasattr(command, "commands")]


def page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 0
    return capsys.readouterr().out


def options_of(names: tuple[str, ...]) -> list[Any]:
    [command] = [one for found, one in commands() if found == names]
    return [one for one in command.params if one.param_type_name == "option"]


@pytest.mark.parametrize("names", EVERY, ids=" ".join)
def test_help_is_plain_text_of_80_columns(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("--help", "--help-all"):
        text = page(capsys, *names, level)
        assert text.isascii(), "no boxes"
        assert "<" not in text, "no stray <bool>"
        assert max(map(len, text.splitlines())) <= help_pages.WIDTH


@pytest.mark.parametrize("names", SINGLE, ids=" ".join)
def test_every_option_is_named_in_help_and_explained_in_help_all(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = page(capsys, *names, "--help"), page(capsys, *names, "--help-all")
    for option in options_of(names):
        assert option.help, option.name
        name = max(option.opts, key=len)
        assert re.search(rf"{name}\b", short), name
        assert option.help.split()[0] in long
        assert re.search(rf"^  (-\w, )?{name}\b", long, re.MULTILINE), name


def test_the_main_options_come_first_and_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    short = page(capsys, "radius", "--help")
    main_part = short[short.index("Main options:") : short.index("More options")]
    named = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", main_part, re.MULTILINE)
    assert {"--model", "--data", "--out", "--norm", "--tier", "--seconds", "--limit", "--domain"} <= set(
        named
    )
    assert len(named) <= 12
    assert len(page(capsys, "radius", "--help").splitlines()) < 80
    assert len(page(capsys, "radius", "--help-all").splitlines()) > 130


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), ("POPQORN", "L0-TRE", "DeepTRE", "TP-MADS", "CLEVER", "C&W", "Lipschitz metric Q", "MARBLE")),
        (("radius",), ("POPQORN", "L0-TRE", "CROWN")),
        (("risk",), ("Lipschitz metric Q", "TP-MADS", "DeepQuant")),
        (("monitor",), ("MARBLE",)),
        (("monitor", "fit"), ("MARBLE",)),
        (("monitor", "export"), ("MARBLE",)),
    ],
)
def test_the_words_of_the_papers_are_found(
    names: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(page(capsys, *names, "--help").split())
    for word in words:
        assert word in text


def test_methods_that_the_overview_of_papers_names_exist() -> None:
    from holdfast.api import methods  # noqa: F401
    from holdfast.method import known_methods

    text = " ".join(" ".join(pair) for pair in help_pages.PAPERS)
    named = re.findall(r"--methods (\w+)", text)
    assert named
    assert set(named) <= set(known_methods())
    known = {option for _, command in commands() for one in command.params for option in one.opts}
    assert set(re.findall(r"--[a-z]+", text)) <= known


@pytest.mark.parametrize("name", [name for name in help_pages.NEIGHBOURS if name != "holdfast-check"])
def test_a_command_with_similar_names_says_first_how_it_differs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(capsys, name, "--help")
    beginning = text[: text.index("Arguments:")]
    for other in help_pages.NEIGHBOURS:
        assert (f"  {other} " in beginning) == (other != name)


def test_the_checker_says_how_it_differs_and_a_page_lists_all_five(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from holdfast_check.__main__ import main as check_proofs

    with pytest.raises(SystemExit):
        check_proofs(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    listed = (DOCS / "evidence.md").read_text()
    for name in help_pages.NEIGHBOURS:
        command = name if name == "holdfast-check" else f"holdfast {name}"
        assert f"| `{command}` |" in listed
        assert name == "prove" or name in text


def test_holdfast_alone_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys)
    lines = text.splitlines()
    assert len(lines) < 24, "one screen"
    assert max(map(len, lines)) <= help_pages.WIDTH
    shown = re.findall(r"^  holdfast ([\w-]+)|: +holdfast ([\w-]+)", text, re.MULTILINE)
    known = {names[0] for names in EVERY if names}
    assert {a or b for a, b in shown} - {"--help"} <= known
    for name in ("demo", "inspect", "radius", "report", "--help"):
        assert f"holdfast {name}" in text


def test_a_group_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    alone = page(capsys, "monitor")
    assert alone.split() == page(capsys, "monitor", "--help").split()
    assert "\n  evaluate " in alone


def test_an_internal_error_says_what_to_send(ask: Ask) -> None:
    said = ask(
        "radius", "-m", "cli_own_code:linear", "-d", "cli_own_code:bug", "--domain", "0,1", "-o", "run"
    )
    assert said.code == 1
    assert "internal error (LookupError: nobody saw this coming)" in said.err
    assert "Traceback" not in said.err
    [name] = re.findall(r"\S*holdfast-error-\S*\.txt", said.err)
    report = Path(name).read_text()
    Path(name).unlink()
    assert f"holdfast {__version__}" in report
    assert "command: holdfast radius -m cli_own_code:linear -d cli_own_code:bug --domain 0,1 -o run" in report
    assert "in __contains__" in report
    assert "LookupError: nobody saw this coming" in report


def test_debug_shows_the_traceback_instead(workshop: Path) -> None:
    with pytest.raises(LookupError):
        main(["radius", "-m", "cli_own_code:linear", "-d", "cli_own_code:bug", "-o", "run", "--debug"])


def test_methods_with_a_name_can_be_made_without_settings() -> None:
    """`holdfast inspect` makes each of them; a class that needs an argument ended it with an internal error."""
    from holdfast.attacks import External
    from holdfast.method import known_methods

    known = known_methods()
    assert all(kind() for kind in known.values())
    assert External not in known.values()

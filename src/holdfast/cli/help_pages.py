"""Help pages: `holdfast`, `holdfast --help`, `holdfast COMMAND --help` and `holdfast COMMAND --help-all`.

Help is plain text without boxes, at most 80 columns wide, so that it reads the same in a terminal and in a
pipe. A command with more than FEW_OPTIONS options explains only its main options (those without a panel) and
lists the others by topic; --help-all explains all of them.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.cli import usage_hints

# The base of all errors about a command line: of the click that typer contains, or of the one that it needs.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
EXTRA = re.compile(r"unexpected extra arguments? *\(?s?\)? *\((.*)\)$")


WIDTH = 80  # Columns of every help page: the usual width of a terminal and of a page of text.
FEW_OPTIONS = 16  # A command with at most this many options explains all of them in --help (fits one screen).
NAME_COLUMNS = 26  # Columns for the name of an option before its text; a longer name gets its own line.
MAIN = "Main options"
SHOW_ALL = "--help-all"
EXAMPLE_RUN = "runs/first"  # A folder that a message proposes for the results.

START = """\
holdfast measures how robust a trained neural network is: how far an input can
move before the prediction changes. Lower bounds are proved; upper bounds come
with a counterexample.

Try it on networks and data that ship with holdfast:
  holdfast demo

What does holdfast understand of your model?
  holdfast inspect model.onnx

How far can each of 20 inputs move? Then look at the result:
  holdfast radius --model model.onnx --data inputs.npz --limit 20 --out runs/a
  holdfast report runs/a

All commands:        holdfast --help
One command:         holdfast radius --help
Every option of it:  holdfast radius --help-all
"""

PAPERS = (
    ("POPQORN", "radius --tier fast (certified lower bounds for LSTM, GRU and RNN; --frames each)"),
    ("CLEVER-RNN, C&W-Ada", "radius --methods clever-rnn, --methods carlini (POPQORN's estimate and attack)"),
    ("CROWN", "radius --tier fast; alpha-CROWN and branch and bound: --tier tight, --tier split"),
    ("DeepTRE, L0-TRE", "radius --norm 0 (exact); --norm 0 --mode grid (subspace sensitivity)"),
    ("global robustness", "radius: the mean over all inputs; pointwise robustness: each input"),
    ("DeepQuant", "risk: Lipschitz metric Q (--margin, --property), TP-MADS (--methods mesh)"),
    ("MARBLE", "monitor fit --mode marble, score (0-step; --k for k-step), export --prism"),
    ("PGD, CLEVER", "radius --methods pgd, --methods clever"),
    ("Cohen et al.", "smoothing (randomised smoothing)"),
)


# Five commands with similar names, and their purpose.
NEIGHBOURS = {
    "verify": "answers a VNN-LIB query about a model: sat or unsat.",
    "check": "recomputes the results of a run folder with holdfast.",
    "verify-bundle": "checks a bundle file: hashes, signatures, certificates.",
    "prove": "writes certificates for a run folder; checks nothing.",
    "holdfast-check": "accepts or rejects certificates without the engine.",
}


class PlainHelpCommand(TyperCommand):
    """A command whose help, and whose refusal of a missing option, are written here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say of a missing option what it is, after its name, and of an unknown one what is meant."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if not error.message:  # Only a missing option or argument comes without a reason.
                error.message = _describe_missing(error.param)
            raise
        except USAGE_ERROR as error:
            _explain(error, given, self, ctx)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(self, ctx, everything=bool(ctx.find_root().obj)))


class Group(TyperGroup):
    """A group of commands whose help is written here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(group_help(self, ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Say of an unknown command which one is meant."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            ctx.fail(f"No such command {args[0]!r}. {usage_hints.hint_for_command(args[0], names)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help page of a group that is given without a command."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            print(group_help(self, ctx), end="")
            ctx.exit()
        return super().parse_args(ctx, args)


def _explain(error: Any, given: Sequence[str], command: Any, context: Any) -> None:
    """Add to an error about a command line what is probably meant."""
    hint = ""
    if hasattr(error, "possibilities"):  # an unknown option
        hint = usage_hints.hint_for_option(error.option_name, command, context)
        error.possibilities = None
    elif found := EXTRA.search(error.message):
        hint = usage_hints.hint_for_words(found[1].split(), given)
    if hint:
        error.message = f"{error.message.rstrip('.')}. {hint}"


def _describe_missing(one: Any) -> str:
    """What to give for a required option or argument, as a sentence; empty if it has no help text."""
    told = " ".join((getattr(one, "help", None) or "").split())
    if not told:
        return ""
    name = f"{one.opts[0]} {one.metavar or one.name.upper()}" if one.param_type_name == "option" else ""
    example = f" For example: --out {EXAMPLE_RUN}" if "--out" in one.opts else ""
    return f"Give {name}: {told}{example}" if name else f"{told}{example}"


def command_help(command: Any, ctx: Any, *, everything: bool) -> str:
    """The help page of one command; everything: explain every option, however many there are."""
    parameters = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    panels = _panels(one for one in parameters if one.param_type_name == "option" and not _is_help(one))
    count = sum(map(len, panels.values()))
    short = count > FEW_OPTIONS and len(panels) > 1 and not everything
    lines = [f"Usage: {ctx.command_path} {' '.join([*map(_shown_argument, arguments), '[OPTIONS]'])}", ""]
    first, _, rest = (command.help or "").strip().partition("\n\n")
    lines += [*_paragraphs(first), *_neighbours(command.name), *(_paragraphs(rest) if rest else ())]
    if arguments:
        lines += [
            "Arguments:",
            *_definitions((_shown_argument(one), one.help or "") for one in arguments),
            "",
        ]
    main = panels.pop(MAIN, [])
    last = [("--help", "Show this page.")]
    if count > FEW_OPTIONS and len(panels) > 1:
        last.append((SHOW_ALL, "Explain every option."))
    heading = MAIN if panels else "Options"
    lines += [f"{heading}:", *_definitions([*map(_definition, main), *(() if panels else last)]), ""]
    if short:
        lines += [f"More options, by topic ('{ctx.command_path} {SHOW_ALL}' explains them):"]
        lines += _definitions(
            (topic, "  ".join(one.opts[-1] for one in some)) for topic, some in panels.items()
        )
        lines += [""]
    else:
        for topic, some in panels.items():
            lines += [f"{topic}:", *_definitions(map(_definition, some)), ""]
    if panels:
        lines += ["Help:", *_definitions(last), ""]
    return "\n".join(lines)


def group_help(group: Any, ctx: Any) -> str:
    """The help page of a group: its commands by panel, its options, and where the methods of papers are."""
    lines = [f"Usage: {ctx.command_path} COMMAND [OPTIONS]", "", *_paragraphs(group.help or "")]
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command = group.commands[name]
        panel = getattr(command, "rich_help_panel", None)
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, summary))
    for heading, some in panels.items():
        lines += [f"{heading}:", *_definitions(some, 18), ""]
    if ctx.parent is None:
        lines += ["Methods of papers:", *_definitions(PAPERS, 18), ""]
    shown = [one for one in group.get_params(ctx) if not _is_help(one)]
    lines += ["Options:", *_definitions([*map(_definition, shown), ("--help", "Show this page.")], 18), ""]
    return "\n".join(lines)


def _neighbours(name: str | None) -> list[str]:
    """For a command with similar names: how it differs from them."""
    if name not in NEIGHBOURS:
        return []
    others = [(other, text) for other, text in NEIGHBOURS.items() if other != name]
    return ["Not to be confused with:", *_definitions(others, 18), ""]


def _panels(options: Iterable[Any]) -> dict[str, list[Any]]:
    """The options by the panel that each names, in the order of their declaration; the main options first."""
    found: dict[str, list[Any]] = {MAIN: []}
    for option in options:
        panel = getattr(option, "rich_help_panel", None)
        found.setdefault(panel if isinstance(panel, str) else MAIN, []).append(option)
    return found


def _is_help(parameter: Any) -> bool:
    return "--help" in parameter.opts


def _shown_argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _definition(option: Any) -> tuple[str, str]:
    """How the option is written, and its text with the default or that it is required."""
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {name}" for name in option.secondary_opts)
    text = option.help or ""
    if option.required:
        text = f"{text} [required]"
    elif not isinstance(option.default, bool | None) and option.default not in ("", [], ()):
        text = f"{text} [default: {option.default}]"
    return f"{names} {option.metavar or ''}".strip(), text.strip()


def _definitions(pairs: Iterable[tuple[str, str]], columns: int = NAME_COLUMNS) -> Iterator[str]:
    """Two columns: the name, and its text wrapped to the right of it."""
    indent = " " * (columns + 2)
    for name, text in pairs:
        first, *rest = _wrap(text, WIDTH - len(indent)) or [""]
        if len(name) + 2 > columns:
            yield f"  {name}"
            yield f"{indent}{first}"
        else:
            yield f"  {name:<{columns}}{first}".rstrip()
        yield from (indent + line for line in rest)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs separated by empty lines, each wrapped to the width."""
    lines = list[str]()
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        lines += [*_wrap(" ".join(paragraph.split()), WIDTH), ""]
    return lines


def _wrap(text: str, width: int) -> Sequence[str]:
    """Lines of at most `width` columns; words and options are not broken at hyphens."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

"""How the fields of a dataclass become a command, and what the terminal shows of a measuring command."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.command import Command
from holdfast.commands.options import MEASURE, Model, ModelOptions, Out, Running
from holdfast.commands.parse import bytes_option
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store

Shown = TypeVar("Shown", bound=Command)


class CommandView(Generic[Shown]):
    """What the terminal shows of a measuring command, before and after its search.

    By default: its question, then a table, and a sentence that answers the question.
    """

    def show_question(self, command: Shown, built: "Built", console: "Console") -> None:
        """Print the question before the search, as pages and tables word it."""
        from holdfast.cli.views.output import paragraph
        from holdfast.question_text import describe_question

        paragraph(console, "question", describe_question(built.question))

    def write_files(self, command: Shown, store: "Store", built: "Built") -> None:
        """After a complete search, write further files into the folder of the run."""

    def show(self, command: Shown, store: "Store", built: "Built", console: "Console") -> None:
        """Print the answers."""
        from holdfast.cli.views.results import show_results

        show_results(store, console, built.sort, built.at)


VIEWS: dict[str, CommandView[Any]] = {}
DEFAULT_VIEW = CommandView[Any]()


def view_of(command: Command) -> CommandView[Any]:
    """Return what the terminal shows of this command."""
    return VIEWS.get(command.name, DEFAULT_VIEW)


def register_measurement(
    app: typer.Typer, kind: type[Command], *without: str, view: CommandView[Any] = DEFAULT_VIEW, **how: Any
) -> None:
    """Add a measuring command to the command line. Other arguments are those of `measures`."""
    VIEWS[kind.name] = view
    app.command(kind.name, rich_help_panel=MEASURE)(measures(kind, *without, **how))


def declare_command(
    kind: type[Any],
    run: Callable[..., None],
    *without: str,
    model: Any = Model,
    out: Any = Out,
    extra: type[Any] | None = None,
) -> Callable[..., None]:
    """A function for the command line whose options are the fields of `kind` and whose help is its docstring.

    The function calls `run(kind(...), folder)`, and `run(kind(...), folder, extra(...))` if `extra` is
    given.

    Args:
        without: fields of ModelOptions that the command leaves out.
        model: the option or argument for the model. If the field `network` has a default, the model may be
            omitted.
        out: the option for the folder; None: the command has no folder.
        extra: a dataclass whose fields are further options.
    """
    own = {part.name: part for part in fields(kind)}
    network = own.pop("network", None)
    chosen = (
        []
        if network is None
        else [part for part in fields(ModelOptions) if part.name not in ("model", *without)]
    )

    def command(**given: Any) -> None:
        folder = given.pop("out", None)
        if network is not None:
            path = given.pop("model")
            settings = {part.name: given.pop(part.name) for part in chosen}
            given["network"] = None if path is None else ModelOptions(path, **settings)
        more = (
            () if extra is None else (extra(**{part.name: given.pop(part.name) for part in fields(extra)}),)
        )
        run(kind(**given), folder, *more)

    parts = [] if network is None else [_parameter(network, "model", model)]
    parts += map(_parameter, own.values())
    if out is not None:
        parts.append(
            Parameter(
                "out",
                Parameter.KEYWORD_ONLY,
                default=None if NoneType in get_args(get_args(out)[0]) else Parameter.empty,
                annotation=out,
            )
        )
    parts.sort(key=lambda part: part.default is not Parameter.empty)
    parts += map(_parameter, chosen)
    parts += map(_parameter, () if extra is None else fields(extra))
    command.__signature__ = Signature(parts)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parts}
    command.__doc__ = kind.__doc__
    return command


def _parameter(of: Field[Any], name: str | None = None, annotation: Any = None) -> Parameter:
    default = of.default if of.default_factory is MISSING else of.default_factory()
    default = Parameter.empty if default is MISSING else default
    return Parameter(
        name or of.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation or of.type
    )


def measures(
    kind: type[Any], *without: str, running: type[Running] = Running, **how: Any
) -> Callable[..., None]:
    """A function for the command line that begins a run of a `PlainHelpCommand`; without `out` nothing is saved.

    The arguments are those of `declare_command`.
    """

    def run(command: Any, out: Path | None, given: Running) -> None:
        from holdfast import memory_budget
        from holdfast.cli.run import begin, run_without_saving

        if out is None and getattr(command, "certificates", False):
            raise BadInput(
                "--certificates: they are written to the folder of the run, so name one with --out."
            )
        with memory_budget.limit_process(bytes_option(given.memory)):
            if out is None:
                run_without_saving(command, Terminal(), given)
            else:
                begin(command, out, Terminal(), given)

    return declare_command(kind, run, *without, extra=running, **how)

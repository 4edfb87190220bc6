"""`holdfast loop`: a controller and a plant in a closed loop, and a question about all trajectories."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.commands.options import MEASURE, Seed

if TYPE_CHECKING:
    from holdfast.api.loop import LoopAnswer

EXIT = {"proved": 0, "violated": 1, "open": 3}  # Exit codes of the answers.


def register(app: typer.Typer) -> None:
    app.command("loop", rich_help_panel=MEASURE)(loop)


def loop(
    controller: Annotated[
        str,
        typer.Option(metavar="MODEL", help="A .onnx file, or package.module:name of a torch module."),
    ],
    plant: Annotated[
        str,
        typer.Option(
            metavar="FUNCTION",
            help="package.module:name of a torch function of (states, controls) that returns dx/dt.",
        ),
    ],
    period: Annotated[float, typer.Option(metavar="TIME", help="How long a control is held.")],
    steps: Annotated[int, typer.Option(metavar="COUNT", help="The number of periods.")],
    start: Annotated[
        str,
        typer.Option(metavar="CONDITION", help='Initial states, as in "x1 >= 0.9 and 1 >= x1 and x2 == 0".'),
    ],
    stay: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Prove that every trajectory satisfies this.")
    ] = None,
    avoid: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Prove that no trajectory ever satisfies this.")
    ] = None,
    reach: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Prove that every trajectory satisfies this --at or --by a time."
        ),
    ] = None,
    begin: Annotated[
        float | None,
        typer.Option("--from", metavar="TIME", help="With --stay and --avoid: from this time on."),
    ] = None,
    until: Annotated[
        float | None, typer.Option(metavar="TIME", help="With --stay and --avoid: up to this time.")
    ] = None,
    at: Annotated[float | None, typer.Option(metavar="TIME", help="With --reach: at this time.")] = None,
    by: Annotated[
        float | None, typer.Option(metavar="TIME", help="With --reach: at some moment up to this time.")
    ] = None,
    controller_inputs: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="A torch function from the states to what the controller reads. Default: the states.",
        ),
    ] = None,
    states: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Names of the states, with commas. Default: x1,x2,...")
    ] = None,
    units: Annotated[str | None, typer.Option(metavar="NAMES", help="Their units, with commas.")] = None,
    discrete: Annotated[
        bool, typer.Option("--discrete", metavar="", help="The plant returns the next states, not dx/dt.")
    ] = False,
    disturbance: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="For each state, with commas, the largest absolute value that is added to dx/dt at any time.",
        ),
    ] = None,
    order: Annotated[
        int, typer.Option(metavar="COUNT", help="Order of the Taylor expansion in time, 2 to 4.")
    ] = 3,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Stop after this many seconds; what is left is open."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The memory that the process may use, such as 4GB.")
    ] = None,
    max_boxes: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Stop after this many boxes of initial states.")
    ] = None,
    width_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="After a proof, narrow the tube until it is at most this many times as wide as simulations.",
        ),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Write the page, the answer and the state of the search here, and continue.",
        ),
    ] = None,
) -> None:
    """Prove that a controller keeps its plant in (or out of) a set of states, or find a trajectory that does not.

    Exit codes: 0 proved, 1 violated, 3 open.
    """
    import sys

    from holdfast.api.loop import Loop
    from holdfast.commands.parse import bytes_option
    from holdfast.errors import BadInput
    from holdfast.reading.source import call, import_named

    asked = {"stay": stay, "avoid": avoid, "reach": reach}
    given = [kind for kind, condition in asked.items() if condition is not None]
    if len(given) != 1:
        raise BadInput("give one of --stay, --avoid and --reach: each is a question of its own.")
    (kind,) = given
    if kind == "reach" and (begin is not None or until is not None):
        raise BadInput("--from and --until belong to --stay and --avoid; with --reach give --at or --by.")
    if kind != "reach" and (at is not None or by is not None):
        raise BadInput("--at and --by belong to --reach; with --stay and --avoid give --from and --until.")
    is_code = ":" in controller and not controller.endswith((".onnx", ".onnx.gz"))
    made = Loop(
        call(controller, "--controller") if is_code else controller,
        import_named(plant, "--plant")[0],
        period=period,
        steps=steps,
        inputs=None
        if controller_inputs is None
        else import_named(controller_inputs, "--controller-inputs")[0],
        states=None if states is None else _list(states),
        units=None if units is None else _list(units),
        discrete=discrete,
        disturbance=None if disturbance is None else _numbers(disturbance),
        order=order,
    )
    budget: dict[str, Any] = {
        "seconds": seconds,
        "memory": bytes_option(memory),
        "max_boxes": max_boxes,
        "width_ratio": width_ratio,
        "seed": seed,
        "folder": out,
    }
    condition = str(asked[kind])
    if kind == "reach":
        answer = made.reach(start, condition, at=at, by=by, **budget)
    else:
        between = None
        if begin is not None or until is not None:
            between = (begin or 0.0, period * steps if until is None else until)
        ask = made.stay if kind == "stay" else made.avoid
        answer = ask(start, condition, between=between, **budget)
    print(answer.sentence)
    if out is not None:
        page = answer.save_page(out / "index.html")
        (out / "answer.json").write_text(json.dumps(_as_json(answer), indent=1), encoding="utf-8")
        print(f"page: {page}")
    sys.exit(EXIT[answer.verdict])


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(text: str) -> list[float]:
    from holdfast.errors import BadInput

    try:
        return [float(part) for part in _list(text)]
    except ValueError:
        raise BadInput(f'--disturbance {text!r}: expected numbers with commas, such as "0,0,1e-4".') from None


def _as_json(answer: "LoopAnswer") -> dict[str, Any]:
    """The answer for other programs; null where a number is not known."""
    return {
        "answer": answer.verdict,
        "sentence": answer.sentence,
        "question": answer.question,
        "states": list(answer.states),
        "units": list(answer.units),
        "start": [end.tolist() for end in answer.start],
        "period": answer.period,
        "steps": answer.steps,
        "proved_margin": answer.margin,
        "sampled_margin": _number(answer.sampled_margin),
        "proved_share": answer.proved_share,
        "boxes": answer.boxes,
        "open_boxes": answer.open_boxes,
        "witness": None if answer.witness is None else answer.witness.tolist(),
        "ends": None if answer.ends is None else _to_json(answer.ends.tolist()),
        "tube": None if answer.tube is None else _to_json(answer.tube.tolist()),
        "sampled_ends": answer.sampled_ends.tolist(),
        "method": answer.method,
        "assumptions": list(answer.assumptions),
        "certificate": None,
        "why_no_certificate": "the format of certificates has no flows of differential equations",
        "seconds": answer.seconds,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _to_json(value: Any) -> Any:
    return [_to_json(part) for part in value] if isinstance(value, list) else _number(value)

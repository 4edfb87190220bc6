"""`holdfast export`: the records of a run for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Run
from holdfast.foreign_text import printable

if TYPE_CHECKING:
    from holdfast.store import Store


def register(app: typer.Typer) -> None:
    app.command("export", rich_help_panel=RUNS)(export)


def export(
    run: Run,
    to: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A .json, .csv or .parquet file for the records, .npz for the counterexamples; a folder with "
            "--vnnlib.",
        ),
    ],
    vnnlib: Annotated[
        bool,
        typer.Option(
            "--vnnlib",
            metavar="",
            help="Write the question of each input as a VNN-LIB file, for other verifiers; needs --at.",
        ),
    ] = False,
    at: Annotated[float | None, typer.Option(metavar="RADIUS", help="With --vnnlib: the radius.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="With --vnnlib: the network as .onnx, if the run's is none."),
    ] = None,
) -> None:
    """Write the records of a run as JSON, CSV or Parquet, its counterexamples as npz, or its question as VNN-LIB."""
    from holdfast.errors import BadInput
    from holdfast.store import Store

    if not vnnlib and (at is not None or model is not None):
        raise BadInput("--at and --model have no effect here: they are for --vnnlib.")
    with Store.read(run) as store:
        if vnnlib:
            written = _write_vnnlib(store, to, at, model)
            Terminal().print(
                f"written: {len(written)} files in {printable(to)}", soft_wrap=True, highlight=False
            )
            return
        Terminal().print(f"written: {printable(store.export(to))}", soft_wrap=True, highlight=False)


def _write_vnnlib(store: "Store", folder: Path, at: float | None, model: Path | None) -> list[Path]:
    """The files, given the number of outputs of the network, for a class that the run stored."""
    import torch

    from holdfast.errors import BadInput
    from holdfast.network import Network
    from holdfast.report.vnnlib_files import check_question, write_vnnlib

    if at is None:
        raise BadInput("--vnnlib writes boxes: give their radius, as in --at 0.02.")
    check_question(store.question, at)
    given = str(model) if model is not None else store.question.model.name
    if not given.endswith((".onnx", ".onnx.gz")) or not Path(given).is_file():
        raise BadInput(
            f"the network {printable(given)} is no .onnx file here: export it (torch.onnx.export), and name the file "
            "with --model."
        )
    first = next(store.stream_inputs(), None)
    if first is None:
        raise BadInput("the run has no inputs.")
    options: Any = store.question.options.get("network") or {}
    net = Network.from_onnx(given, batched=not options.get("unbatched"))
    answer = net(torch.from_numpy(first.x)[None].to(net.dtype))
    if first.prediction is not None and int(answer.argmax()) != first.prediction:
        raise BadInput(
            f"{printable(given)} predicts class {int(answer.argmax())} of input {first.index}, and the run class "
            f"{first.prediction}: it is another network."
        )
    return write_vnnlib(store, folder, at=at, outputs=answer.shape[1], model=given)

"""`holdfast equivalent`: do two networks answer alike over a box of inputs?"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.commands.options import MEASURE, Certificates, OutOrNothing, Seed, request_option

if TYPE_CHECKING:
    from holdfast.network import Network


def register(app: typer.Typer) -> None:
    app.command("equivalent", rich_help_panel=MEASURE)(equivalent)


def equivalent(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .onnx or .pt2 file.")],
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The network that MODEL is compared with, as such a file.")
    ],
    box: Annotated[str, request_option("box")],
    within: Annotated[
        float | None,
        typer.Option(metavar="WIDTH", help="Prove that no output differs by more than this."),
    ] = None,
    same_class: Annotated[
        bool, typer.Option("--same-class", metavar="", help="Prove that both choose the same class.")
    ] = False,
    margin: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="With --same-class: only where the class of MODEL leads all others by more than this.",
        ),
    ] = 0.0,
    tolerance: Annotated[float, request_option("tolerance")] = 1e-2,
    seconds: Annotated[
        float,
        typer.Option(metavar="NUMBER", help="Stop after this many seconds, with the bounds found by then."),
    ] = 120.0,
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the question as a VNN-LIB 2 file, for any verifier."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", metavar="", help="Open .pt2 files although they may run code.")
    ] = False,
    seed: Seed = 0,
    certificates: Certificates = False,
    out: OutOrNothing = None,
) -> None:
    """Prove that two networks answer alike for every input of a box, or find an input where they do not.

    Without --within and --same-class, the largest difference of their outputs is bracketed.
    """
    from holdfast.api.equivalent import equivalent as compare
    from holdfast.cli.run import begin, run_without_saving
    from holdfast.cli.terminal import Terminal
    from holdfast.commands.options import ModelOptions, Running
    from holdfast.commands.reading.box import box_option
    from holdfast.commands.reading.model import load_network
    from holdfast.commands.verify import Verify
    from holdfast.errors import BadInput

    asked = within is not None or same_class
    if within is not None and same_class:
        raise BadInput("give --within or --same-class, not both: they are two questions.")
    if margin and not same_class:
        raise BadInput("--margin belongs to --same-class: by how much the class has to lead.")
    if not asked and (out is not None or spec is not None):
        raise BadInput("--out and --spec keep a question: add --within or --same-class.")
    if certificates and out is None:
        raise BadInput("--certificates: they are written to the folder of the run, so name one with --out.")
    one, two = (load_network(ModelOptions(file, trust=trust)) for file in (model, other))
    ends = box_option(box, one)
    if not asked:
        print(compare(one, two, ends, tolerance=tolerance, seconds=seconds, seed=seed))
        return
    if out is not None and spec is None:
        spec = out.with_name(f"{out.name}.vnnlib")
    lead = margin if same_class else None
    text = question(one, two, ends, within, lead)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "query.vnnlib" if spec is None else spec
        if spec is not None and spec.exists() and spec.read_text(encoding="utf-8") != text:
            raise BadInput(f"{spec} exists and holds another question; name another --spec or --out.")
        file.write_text(text, encoding="utf-8")
        claim = f"no output differs by more than {within:g}" if lead is None else "both choose the same class"
        print(
            f"; unsat means: {claim} for any input of the box (proved); sat: the input below shows otherwise"
        )
        command = Verify(
            ModelOptions(model, trust=trust),
            str(file),
            seconds=seconds,
            networks=[f"f={model}", f"g={other}"],
            seed=seed,
            certificates=certificates,
        )
        if out is None:
            run_without_saving(command, Terminal(), Running())
        else:
            begin(command, out, Terminal(), Running())


def question(
    one: "Network", two: "Network", ends: "tuple[object, object]", within: float | None, margin: float | None
) -> str:
    """The question as VNN-LIB 2, after both networks have been compared with the box and with each other."""
    import torch

    from holdfast.verification.equivalence import equivalence_query, two_networks

    lower, upper = (torch.as_tensor(end) for end in ends)
    _, shape, outputs = two_networks(one, two, lower)
    return equivalence_query(shape, outputs, lower, upper, within=within, margin=margin)

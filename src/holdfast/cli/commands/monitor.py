"""`holdfast monitor`: its commands and their options. `holdfast.cli.monitor` does the work."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdfast.cli.help_pages import Group
from holdfast.cli.measuring import VIEWS, CommandView, declare_command, measures
from holdfast.cli.terminal import Terminal
from holdfast.commands.monitor_evaluate import Device, Evaluate, Folder, Limit, Sequences
from holdfast.commands.options import (
    MODEL_HELP,
    OTHER,
    LabelColumn,
    ModelOptions,
    Seed,
    TextColumn,
    TrustRun,
)
from holdfast.reading.read_settings import ReadSettings

if TYPE_CHECKING:
    from holdfast.commands.built import Built
    from holdfast.store import Store

monitor = typer.Typer(
    cls=Group,
    help="Score how likely the answer of a network stays the same when one word or frame changes (MARBLE). "
    "For "
    "sequences and streams.",
    no_args_is_help=True,
)

Optional = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help=f"{MODEL_HELP} Default: the help desk LSTM that ships with holdfast.",
    ),
]
Made = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the monitor.")]

OMEGA = typer.Option(
    metavar="COUNT",
    min=1,
    help="With --mode marble, which fits MARBLE's own labelled MDP to --data and gives 0-step estimates: the "
    "dimensions of a state that PCA keeps. Default: 16.",
)
THETA = typer.Option(
    metavar="NUMBER", help="With --mode marble: the error allowed in an abstract state. Default: 0.6."
)


@dataclass(frozen=True)
class Fit:
    """Build a monitor for a model and save it in a folder.

    Mutations and abstraction follow MARBLE; --mode abstract fits a probability tree.
    """

    network: ModelOptions | None = None  # None: the help desk LSTM.
    data: Sequences = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    mutation: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help='What may replace an element. A .json file, {"word": ["substitute", ...]}; vectors or '
            "vectors:0.7: words "
            "with this cosine similarity in the embedding; typos; noise:0.1 or noise:0.1,inf: a norm ball "
            "around a frame.",
        ),
    ] = None
    answer: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What must stay the same: classes; bins:0.5: the side of these edges; tolerance:0.1: the "
            "value, to this tolerance.",
        ),
    ] = "classes"
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="exact: every mutant. sampled: random mutants. abstract: estimates learned from --data. "
            "marble: MARBLE's own model, learned from --data. "
            "auto: choose.",
        ),
    ] = "auto"
    unknown: Annotated[
        str, typer.Option(metavar="POLICY", help="For words outside the vocabulary: error, skip, or unk.")
    ] = "unk"
    samples: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="With --mode sampled: mutants for each score.")
    ] = 1000
    confidence: Annotated[
        float, typer.Option(metavar="NUMBER", help="Confidence of the intervals of sampled scores.")
    ] = 0.95
    omega: Annotated[int | None, OMEGA] = None
    theta: Annotated[float | None, THETA] = None
    limit: Limit = None
    seed: Seed = 0


def fit(asked: Fit, out: Path | None) -> None:
    from holdfast.cli.monitor.building import fit_monitor

    assert out is not None
    fit_monitor(asked, out, Terminal())


monitor.command("fit")(declare_command(Fit, fit, model=Optional, out=Made))


@monitor.command()
def score(
    folder: Folder = "helpdesk",
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="A sentence, or a file of sequences (as --data of fit)."),
    ] = None,
    k: Annotated[
        str,
        typer.Option(
            "--k",
            metavar="STEPS",
            help="Which answer must stay: the one STEPS after the element (0: at the element), or final.",
        ),
    ] = "0",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    limit: Limit = None,
    device: Device = None,
    trust: TrustRun = False,
) -> None:
    """Score every word or frame by how likely the answer stays the same, with the evidence."""
    from holdfast.cli.monitor.scores import show_scores

    how = ReadSettings(text_column=text_column, label_column=label_column)
    show_scores(folder, text, k, limit, device, Terminal(), how, trust=trust)


class EvaluateView(CommandView[Evaluate]):
    def show(self, command: Evaluate, store: "Store", built: "Built", console: Console) -> None:
        from holdfast.cli.monitor.scores import show_evaluation

        show_evaluation(store, len(built.extra[2]), console)


VIEWS[Evaluate.name] = EvaluateView()
monitor.command("evaluate")(measures(Evaluate))


def _seconds(help: str) -> Any:
    return typer.Option(metavar="SECONDS", min=0.01, help=help)


def _count(help: str) -> Any:
    return typer.Option(metavar="COUNT", min=1, help=help)


@dataclass(frozen=True)
class Serve:
    """Serve a monitor over HTTP.

    Endpoints: POST /score, websocket /stream, GET /health, /live, /ready and /metrics (Prometheus). The
    limits hold for each worker process.
    """

    folder: Folder = "helpdesk"
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; the default accepts this machine only."),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=65535, help="Port to listen on.")] = 8000
    workers: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            min=1,
            max=256,
            help="Number of processes that share the port, each with its own model.",
        ),
    ] = 1
    device: Device = None
    trust: TrustRun = False
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that clients must send; or set HOLDFAST_TOKEN. Default: no token.",
        ),
    ] = None
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", metavar="", help="Serve /metrics without the token.")
    ] = False
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS certificate in PEM format; needs --certificate-key."),
    ] = None
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")
    ] = None
    max_length: Annotated[int, _count("Reject longer sequences.")] = 512
    max_body: Annotated[
        int, typer.Option(metavar="BYTES", min=64, help="Reject larger requests and messages.")
    ] = 2**20
    max_depth: Annotated[int, _count("Greatest nesting depth of lists in a request.")] = 16
    max_waiting: Annotated[int, _count("Greatest number of requests that wait for an answer.")] = 256
    max_streams: Annotated[int, _count("Greatest number of open streams.")] = 64
    max_connections: Annotated[int, _count("Greatest number of open connections.")] = 512
    max_connections_each: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            min=0,
            help="Greatest number of open connections from one address; 0: no limit, as behind a proxy.",
        ),
    ] = 128
    rate: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Requests and messages a second from one address, for all workers together; 0: no limit.",
        ),
    ] = 500.0
    burst: Annotated[
        int, _count("Requests and messages from one address that may exceed the rate at once.")
    ] = 1000
    reading: Annotated[
        float, _seconds("Timeout for receiving the headers of a request, and for its body.")
    ] = 30.0
    writing: Annotated[float, _seconds("Timeout for a client to receive its answer.")] = 30.0
    idle: Annotated[float, _seconds("Close a connection after this long without a request or message.")] = (
        60.0
    )
    lingering: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="After SIGTERM, time in which /ready reports not ready before the port is closed.",
        ),
    ] = 1.0
    closing: Annotated[float, _seconds("Then, time for open requests to finish.")] = 10.0


def serve(asked: Serve, _: Path | None) -> None:
    from holdfast.cli.monitor.serving import run_service

    run_service(asked, Terminal())


monitor.command("serve")(declare_command(Serve, serve, out=None))


@dataclass(frozen=True)
class ExportPrism:
    """Write the labelled abstract model (MDP) of MARBLE for a model checker, in the format of PRISM."""

    prism: Annotated[
        Path,
        typer.Option(
            "--prism", metavar="FOLDER", help="Folder for the files in the explicit format of PRISM."
        ),
    ]
    folder: Folder = "helpdesk"
    data: Sequences = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    limit: Limit = None
    theta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Error allowed in an abstract state (theta of MARBLE).")
    ] = 0.6
    seed: Seed = 0
    device: Device = None
    trust: TrustRun = False


def export(asked: ExportPrism, _: Path | None) -> None:
    from holdfast.cli.monitor.building import export_prism

    export_prism(asked, Terminal())


monitor.command("export")(declare_command(ExportPrism, export, out=None))


def register(app: typer.Typer) -> None:
    app.add_typer(monitor, name="monitor", rich_help_panel=OTHER)

"""`holdfast monitor`: the commands and their options; what they do is in `holdfast.cli.monitor`, imported when it is needed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console

from holdfast.cli.command import Command
from holdfast.cli.options import (
    OTHER,
    LabelColumn,
    ModelOptions,
    Seconds,
    Seed,
    TextColumn,
    TrustRun,
    declare_command,
    measures,
)
from holdfast.cli.terminal import Terminal
from holdfast.reading.read_settings import How

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.cli.run import Built
    from holdfast.execution import Executor
    from holdfast.monitor import Monitor
    from holdfast.solver import Ended, Progress, SequentialQuestions
    from holdfast.store import Store

monitor = typer.Typer(
    help="How likely does a network's answer stay when one word or frame is another? Scores for sequences and streams.",
    no_args_is_help=True,
)

Optional = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A .onnx or .pt2 file, or package.module:factory. Default: the embedded help desk LSTM.",
    ),
]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="[MONITOR]",
        help="The folder that fit wrote. Default: helpdesk, an LSTM that ships with holdfast.",
    ),
]
Sequences = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="Sequences: a .txt file of sentences, a .csv or .parquet table, a .tsv file of label and text, a .npz file with x and y, or "
        "package.module:function.",
    ),
]
Made = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the monitor goes.")]
Device = Annotated[str | None, typer.Option(metavar="WHERE", help="cpu or cuda. Default: what fit was told.")]
Limit = Annotated[int | None, typer.Option(metavar="COUNT", min=1, help="Only the first so many sequences.")]

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
    """Make a monitor for a model and keep it in a folder."""

    network: ModelOptions | None = None  # None: the embedded help desk
    data: Sequences = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    mutation: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help='What may stand in an element\'s place. A .json file, {"word": ["words it may become"]}; vectors or vectors:0.7, words of '
            "this cosine in the embedding; typos; noise:0.1 or noise:0.1,inf, a norm ball around a frame.",
        ),
    ] = None
    answer: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What must stay: classes; bins:0.5 for the side of edges; tolerance:0.1 for numbers.",
        ),
    ] = "classes"
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="exact: every mutant. sampled: draws. abstract: estimates learned from --data. Or auto.",
        ),
    ] = "auto"
    unknown: Annotated[
        str, typer.Option(metavar="POLICY", help="Words the model does not know: error, skip, or unk.")
    ] = "unk"
    samples: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Draws for a score, where it is sampled.")
    ] = 1000
    confidence: Annotated[
        float, typer.Option(metavar="NUMBER", help="Of the intervals of sampled scores.")
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
        str | None, typer.Argument(metavar="[TEXT]", help="A sentence, or a file as in --data of fit.")
    ] = None,
    k: Annotated[
        str,
        typer.Option(
            "--k",
            metavar="STEPS",
            help="Which answer must stay: 0, right behind the element; so many later; or final.",
        ),
    ] = "0",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    limit: Limit = None,
    device: Device = None,
    trust: TrustRun = False,
) -> None:
    """Score every word or frame: coloured by how likely the answer stays, with the evidence."""
    from holdfast.cli.monitor.scores import show_scores

    how = How(text_column=text_column, label_column=label_column)
    show_scores(folder, text, k, limit, device, Terminal(), how, trust=trust)


@dataclass(frozen=True)
class Evaluate(Command):
    """Measure a monitor on test data: errors against enumeration, attacks on least and most robust places, reliability."""

    name: ClassVar[str] = "monitor evaluate"

    folder: Folder = "helpdesk"
    data: Sequences = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    limit: Limit = None
    seed: Seed = 0
    seconds: Seconds = None
    device: Device = None
    trust: TrustRun = False

    def build(self) -> "Built":
        from holdfast.cli.monitor.building import open_monitor, rows_for
        from holdfast.cli.run import Built, question_of
        from holdfast.monitor.evaluate import keys_of
        from holdfast.network.callable_fingerprint import of_value
        from holdfast.question import DataDescription, Request
        from holdfast.solver import Stop

        stop, console = Stop(self.seconds), Terminal()
        how = How(text_column=self.text_column, label_column=self.label_column)
        opened = open_monitor(self.folder, console, self.device, trust=self.trust)
        rows, monitor = rows_for(opened, self.data, self.limit, console, how), opened.monitor
        read = [monitor.read(sequence) for sequence in rows.sequences]
        asked = Request(
            mutation=[monitor.mutation.kind, of_value(_of(monitor))], outputs=str(monitor.outputs.settings())
        )
        question = question_of(self, monitor.net, None, asked, mode=monitor.settings.mode)
        known = DataDescription(
            self.data or "helpdesk",
            of_value(read),
            len(read),
            None if rows.classes is None else tuple(rows.classes),
        )
        asks = [
            (keys_of(place, len(one)), of_value([monitor.net.fingerprint, _of(monitor), self.seed, one]))
            for place, one in enumerate(read)
        ]
        total = sum(len(keys) for keys, _ in asks)
        return Built(
            monitor.net,
            replace(question, data=known),
            stop=stop,
            total=total,
            extra=(monitor, rows.names, read, asks),
        )

    def keep_inputs(self, store: "Store", built: "Built") -> None:
        _, names, read, _ = built.extra
        nothing = [None for _ in read]
        store.put_inputs(
            read, nothing, nothing, names, [None if one.is_floating_point() else one.tolist() for one in read]
        )

    def worker(self, built: "Built") -> "SequentialQuestions":
        from holdfast.monitor.evaluate import score_sequence
        from holdfast.solver import SequentialQuestions

        made, _, read, asks = built.extra
        return SequentialQuestions(asks, lambda i: score_sequence(made, read[i], i, self.seed), "probability")

    def solve(
        self, store: "Store", built: "Built", progress: "Callable[[Progress], None]", executor: "Executor"
    ) -> "Ended":
        from holdfast.solver import answer_in_turn

        mine = [place for place in range(len(built.extra[2])) if built.mine(place)]
        return answer_in_turn(
            self.worker(built), mine, built.stop, store=store, progress=progress, executor=executor
        )

    def show(self, store: "Store", built: "Built", console: Console) -> None:
        from holdfast.cli.monitor.scores import show_evaluation

        show_evaluation(store, len(built.extra[2]), console)


def _of(made: "Monitor") -> list[Any]:
    """All that its scores depend on besides the network."""
    tensors = {**made.mutation.tensors(), **({} if made.tree is None else made.tree.tensors())}
    return [made.mutation.settings(), made.outputs.settings(), str(made.settings), tensors]


monitor.command("evaluate")(measures(Evaluate))


def _seconds(help: str) -> Any:
    return typer.Option(metavar="SECONDS", min=0.01, help=help)


def _count(help: str) -> Any:
    return typer.Option(metavar="COUNT", min=1, help=help)


@dataclass(frozen=True)
class Serve:
    """Answer over HTTP: POST /score, websocket /stream, GET /health, /live, /ready and /metrics (Prometheus). Limits are each worker's."""

    folder: Folder = "helpdesk"
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; only this machine unless told otherwise.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=65535)] = 8000
    workers: Annotated[
        int,
        typer.Option(
            metavar="COUNT", min=1, max=256, help="Processes that share the port, each with a model."
        ),
    ] = 1
    device: Device = None
    trust: TrustRun = False
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Holds the token that clients must send; or set HOLDFAST_TOKEN. Default: none.",
        ),
    ] = None
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", metavar="", help="/metrics without the token.")
    ] = False
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For TLS, in PEM form; with --certificate-key.")
    ] = None
    certificate_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Of the certificate.")] = None
    max_length: Annotated[int, _count("Longest sequence that is taken.")] = 512
    max_body: Annotated[
        int, typer.Option(metavar="BYTES", min=64, help="Largest request or message that is taken.")
    ] = 2**20
    max_depth: Annotated[int, _count("How deep lists may stand in one another.")] = 16
    max_waiting: Annotated[int, _count("Questions that may wait for an answer.")] = 256
    max_streams: Annotated[int, _count("Streams open at once.")] = 64
    max_connections: Annotated[int, _count("Connections open at once.")] = 512
    max_connections_each: Annotated[
        int, typer.Option(metavar="COUNT", min=0, help="Of them from one address; 0: any, as behind a proxy.")
    ] = 128
    rate: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Requests and messages a second from one address, for all workers; 0: any.",
        ),
    ] = 500.0
    burst: Annotated[int, _count("How many of them at once.")] = 1000
    reading: Annotated[float, _seconds("For a request's head, and for its body, to come in.")] = 30.0
    writing: Annotated[float, _seconds("For a client to take its answer.")] = 30.0
    idle: Annotated[float, _seconds("Without a request or a message before a connection is closed.")] = 60.0
    lingering: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="After SIGTERM, in which /ready says no before the port is closed."
        ),
    ] = 1.0
    closing: Annotated[float, _seconds("For open requests to end after that.")] = 10.0


def serve(asked: Serve, _: Path | None) -> None:
    from holdfast.cli.monitor.serving import run_service

    run_service(asked, Terminal())


monitor.command("serve")(declare_command(Serve, serve, out=None))


@monitor.command()
def export(
    prism: Annotated[
        Path, typer.Option("--prism", metavar="FOLDER", help="Where the files in PRISM's explicit format go.")
    ],
    folder: Folder = "helpdesk",
    data: Sequences = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    limit: Limit = None,
    theta: Annotated[
        float, typer.Option(metavar="NUMBER", help="The error that is left in an abstract state.")
    ] = 0.6,
    seed: Seed = 0,
    device: Device = None,
    trust: TrustRun = False,
) -> None:
    """Write the network's labelled abstract model (MARBLE's MDP) for a model checker."""
    from holdfast.cli.monitor.building import export_prism

    how = How(text_column=text_column, label_column=label_column)
    export_prism(folder, data, prism, limit, theta, seed, device, Terminal(), how, trust=trust)


def register(app: typer.Typer) -> None:
    app.add_typer(monitor, name="monitor", rich_help_panel=OTHER)

"""`holdfast verify`: one VNN-LIB question in the format of the competition, or a list of them as a table."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.parse import ModelOptions
from holdfast.cli.reading.model import load_network
from holdfast.errors import BadInput, HoldfastError, MissingExtra, StoreError
from holdfast.network import Network
from holdfast.report.summary import at_least, at_most
from holdfast.solver import Stop
from holdfast.verification import Instance, Verdict, read_instances, read_key, verify
from holdfast.verification.instances import contradicts
from holdfast.verification.verify import input_shape
from holdfast.verification.vnnlib import read_vnnlib

COLUMNS = ("network", "property", "answer", "seconds", "nodes", "least", "lowest", "expected", "note")


def answer_one(network: ModelOptions, spec: str, seconds: float, seed: int) -> None:
    """The answer is the first word of the output; a counterexample follows, then lines that begin with a semicolon."""
    asked = read_vnnlib(spec)
    net, judges = _networks(network, asked.inputs)
    found = verify(net, asked, stop=Stop(seconds=seconds), seed=seed, judges=judges)
    print(found.answer)
    if found.witness is not None and found.outputs is not None:
        print(_counterexample(found))
    for line in _remarks(found, net, judges):
        print(f"; {line}")
    if found.note == "interrupted":
        sys.exit(130)


def _counterexample(found: Verdict) -> str:
    assert found.witness is not None
    assert found.outputs is not None
    inputs = [f"(X_{i} {value!r})" for i, value in enumerate(found.witness.flatten().tolist())]
    outputs = [f"(Y_{i} {value!r})" for i, value in enumerate(found.outputs.tolist())]
    return "(" + "\n".join([*inputs, *outputs]) + ")"


def _remarks(found: Verdict, net: Network, judges: list[Network]) -> Iterator[str]:
    yield from net.notes
    if found.note:
        yield found.note
    if found.answer == "sat":
        places = [f"in its own arithmetic ({str(net.dtype).removeprefix('torch.')})", "in float64", *(["by onnxruntime"] if judges else [])]
        yield f"replayed through {net.name}: {', '.join(places)}"
    elif found.answer == "unsat":
        yield "proved in float64 with every rounding charged"
        yield from (f"where {said}" for said in (found.evidence.assumptions if found.evidence else ()))
    else:
        least, lowest = at_least(found.least, 6), at_most(found.lowest, 6)
        yield f"the smallest score lies between {least} (proved) and {lowest} (met); not positive would be sat"
    yield f"{found.nodes} parts bounded, {found.seconds:.2f} s"


def _networks(question: ModelOptions, inputs: int) -> tuple[Network, list[Network]]:
    """The network, and the same file through onnxruntime where that is installed."""
    net = _fitting(question, inputs)
    if not _is_onnx(question) or question.constants:
        return net, []
    try:
        return net, [_through_onnxruntime(question.model)]
    except MissingExtra:
        return net, []


def _through_onnxruntime(model: str) -> Network:
    from holdfast.network.onnx.runtime import session

    run = session(model)
    rank = len(run.inputs[0].shape)

    def ask(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        answers = [run(row.reshape((1,) * (rank - row.ndim) + row.shape)) for row in x]
        return np.stack([np.asarray(answer[0] if isinstance(answer, tuple) else answer).flatten() for answer in answers])

    return Network.from_callable(ask, name=f"{model} in onnxruntime")


def _fitting(question: ModelOptions, inputs: int) -> Network:
    """Some .onnx files take an input without a batch axis, which shows when they are asked for as many numbers as the property has."""
    try:
        net = load_network(question)
        input_shape(net, inputs)
    except (BadInput, RuntimeError) as error:
        if not _is_onnx(question) or question.unbatched:
            raise
        with suppress(BadInput, RuntimeError):
            net = load_network(replace(question, unbatched=True))
            input_shape(net, inputs)
            return net
        raise error
    return net


def _is_onnx(question: ModelOptions) -> bool:
    return question.model.endswith((".onnx", ".onnx.gz"))


@dataclass(frozen=True)
class Line:
    """One answered instance of a list."""

    instance: Instance
    answer: str
    seconds: float
    nodes: int
    least: float
    lowest: float
    expected: str
    note: str

    @property
    def wrong(self) -> bool:
        return contradicts(self.answer, self.expected)

    def cells(self) -> list[str]:
        numbers = [f"{self.seconds:.2f}", str(self.nodes), f"{self.least:.6g}", f"{self.lowest:.6g}"]
        return [*self.instance.name, self.answer, *numbers, self.expected, self.note]


def answer_many(source: Path, seconds: float | None, key: Path | None, out: Path | None, seed: int, console: Console) -> None:
    """Every line of the list in turn; each is written as soon as it is known."""
    instances, known = read_instances(source), {} if key is None else read_key(key)
    lines: list[Line] = []
    try:
        with _file(out) as file:
            for line in _answers(instances, seconds, known, seed):
                lines.append(line)
                if file is not None:
                    csv.writer(file).writerow(line.cells())
                    file.flush()
                console.print(_shown(line), soft_wrap=True)
    except KeyboardInterrupt:
        console.print(Text(f"interrupted: {len(lines)} of {len(instances)} are answered.", style="yellow"))
    console.print(_table(lines, len(instances)))
    if any(line.wrong for line in lines):
        console.print(Text("An answer contradicts the key: please report it, with the files.", style="bold red"))
        sys.exit(1)
    if len(lines) < len(instances):
        sys.exit(130)


def _answers(instances: list[Instance], seconds: float | None, key: Mapping[tuple[str, str], str], seed: int) -> Iterator[Line]:
    loaded: tuple[Path, Network, list[Network]] | None = None
    for instance in instances:
        expected = key.get(instance.name, "")
        try:
            spec = read_vnnlib(instance.spec)
            if loaded is None or loaded[0] != instance.model:
                loaded = instance.model, *_networks(ModelOptions(str(instance.model)), spec.inputs)
            limit = instance.seconds if seconds is None else seconds
            found = verify(loaded[1], spec, stop=Stop(seconds=limit), seed=seed, judges=loaded[2])
        except HoldfastError as error:
            yield Line(instance, "error", 0.0, 0, float("nan"), float("nan"), expected, str(error))
            continue
        if found.note == "interrupted":
            raise KeyboardInterrupt
        yield Line(instance, found.answer, found.seconds, found.nodes, found.least, found.lowest, expected, found.note)


@contextmanager
def _file(out: Path | None) -> Iterator[TextIO | None]:
    if out is None:
        yield None
        return
    if out.exists():
        raise StoreError(f"{out} exists already. Choose another file with --out.")
    try:
        file = out.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}). Choose another file with --out.") from error
    with file:
        csv.writer(file).writerow(COLUMNS)
        yield file


def _shown(line: Line) -> Text:
    network, spec = line.instance.name
    style = "red" if line.wrong or line.answer == "error" else ""
    told = f"  (the key says {line.expected})" if line.wrong else f"  {line.note}" if line.note else ""
    return Text(f"{network} {spec}: {line.answer} {line.seconds:.2f} s{told}", style=style)


def _table(lines: list[Line], asked: int) -> Table:
    """How many of each answer, and what the key says of them."""
    view = Table("answer", "instances", "seconds, mean", "seconds, most", caption_justify="left")
    for answer, count in Counter(line.answer for line in lines).most_common():
        spent = [line.seconds for line in lines if line.answer == answer]
        view.add_row(answer, str(count), f"{sum(spent) / count:.2f}", f"{max(spent):.2f}")
    solved = sum(line.answer in ("sat", "unsat") for line in lines)
    view.caption = f"{solved} of {asked} solved"
    if any(line.expected for line in lines):
        agreed = sum(line.answer == line.expected.rstrip("?") for line in lines)
        view.caption += f"; {agreed} agree with the key, {sum(line.wrong for line in lines)} contradict it"
    return view


def check(model: str, spec: str | None) -> None:
    """A list of instances names its properties itself."""
    listed = Path(model).is_dir() or model.endswith(".csv")
    if listed and spec is not None:
        raise BadInput(f"{model} is a list of instances, which names its properties; leave {spec} out.")
    if not listed and spec is None:
        raise BadInput(f"{model}: a property is needed beside the model, as in 'holdfast verify {model} property.vnnlib'.")

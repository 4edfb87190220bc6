"""hf.prove: certificates of the claims of records."""

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.api.arguments import StopOption, check_stop, show
from holdfast.certificates.names import check_names, claim_names, read_names
from holdfast.certificates.writing import Certificate, iterate_certificates
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.result import Key, Record
from holdfast_check.claim_text import ClaimNames, VariableLabel


def prove(
    problems: Iterable[Problem],
    records: Iterable[Record],
    folder: str | Path,
    *,
    file: str | Path | None = None,
    names: str | Path | None = None,
    stop: StopOption = None,
    seconds: float | None = None,
) -> list[Certificate]:
    """Write a certificate file for every claim of these records into a folder.

    The model is written too, unless the checker reads its .onnx file.

    Args:
        problems: the hf.Problem objects that were solved.
        records: their answers, as `hf.solve` returns them.
        folder: where the files go.
        file: the .onnx file that the network was read from.
        names: a .csv file with names and units of inputs and outputs, which certificates then carry as labels.
        stop: hf.Stop(seconds=...) or a number of seconds for all certificates; claims that are left then have
            no file, and say so.
        seconds: the same as a number for `stop`.
    """
    problems = (
        [problems] if isinstance(problems, Problem) else list(_iterable("problems", problems, "hf.Problem"))
    )
    records = list(_iterable("records", records, "hf.Record"))
    for name, values, kind in (("problems", problems, Problem), ("records", records, Record)):
        wrong = next((one for one in values if not isinstance(one, kind)), None)
        if wrong is not None:
            raise BadInput(
                f"{name}: expected hf.{kind.__name__} objects, got {show(wrong)}; hf.solve takes problems "
                "and returns records."
            )
    if not isinstance(folder, str | Path):
        raise BadInput(f"folder: expected the path of a folder, got {show(folder)}.")
    stop = check_stop(stop, seconds)
    known, place = {record.key: record for record in records}, Path(folder)
    until = (
        math.inf
        if stop is None or stop.seconds is None
        else time.monotonic() + (stop.remaining_seconds() or 0.0)
    )
    source = None if file is None else Path(file)
    place.mkdir(parents=True, exist_ok=True)
    given = {} if names is None else read_names(names)
    return [
        made
        for problem in problems
        for made in iterate_certificates(problem, known, place, source, until, _labels(problem, given))
    ]


def _labels(problem: Problem, given: Mapping[str, VariableLabel]) -> dict[Key, ClaimNames]:
    """The labels of every row of a problem."""
    if not given:
        return {}
    centre = problem.region.centre[:1].to(problem.network.dtype)
    inputs, outputs = int(centre[0].numel()), int(problem.network(centre).flatten(1).shape[1])
    check_names(given, inputs, outputs, "names")
    return dict.fromkeys(problem.keys, claim_names(inputs, outputs, given))


def _iterable(name: str, given: Any, kind: str) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadInput(f"{name}: expected a list of {kind}, got {show(given)}.")
    return given

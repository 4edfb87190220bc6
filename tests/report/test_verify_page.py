"""The page of `verify` over a list: the chart of solved instances, and which unsat answers have a certificate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from report_runs import Document, record

import holdfast as hf
from holdfast.report.answers import AnswerTable, answer_table
from holdfast.report.page import render_pages
from holdfast.result import Key, Record
from holdfast.store.merge import merge

NewStore = Callable[..., hf.Store]
BOUNDS = {"unsat": (0.5, 1.0), "sat": (-2.0, -1.0), "timeout": (-1.0, 1.0)}


def fill(store: hf.Store, answers: Sequence[tuple[str, float]]) -> hf.Store:
    """Store an instance of one case for each answer, with its seconds."""
    none, names = [None] * len(answers), [f"net.onnx prop_{k}.vnnlib" for k in range(len(answers))]
    store.put_inputs([torch.zeros(0)] * len(answers), none, none, names, none)
    store.write([of_case(k, 0, *answer) for k, answer in enumerate(answers)])
    return store


def of_case(index: int, case: int, answer: str, seconds: float) -> Record:
    status = "stopped" if answer == "timeout" else "finished"
    return replace(record(index, *BOUNDS[answer], frame=case, goal="worst", status=status), seconds=seconds)


def table_of(store: hf.Store) -> AnswerTable:
    found = answer_table(store)
    assert found is not None
    return found


def column(found: AnswerTable, name: str) -> list[str]:
    place = [title for title, _ in found.columns].index(name)
    return [row[place] for row in found.rows]


def drawn_lines(
    store: hf.Store, monkeypatch: pytest.MonkeyPatch
) -> tuple[AnswerTable, dict[str, list[tuple[float, int]]], str]:
    """The table, the inner points (seconds, solved) of each line of its chart, and the scale of the time axis."""
    lines, axes_seen, original = dict[str, list[tuple[float, int]]](), list[Axes](), Axes.step

    def step(axes: Axes, x: Sequence[float], y: Sequence[int], **style: str) -> object:
        points = list(zip(x, y, strict=True))
        assert style["where"] == "post"
        assert points[0][1] == 0  # From no solved instance at the left edge to a level line at the right.
        assert points[-1][1] == points[-2][1]
        assert points[-1][0] > points[-2][0]
        lines[style["label"]] = points[1:-1]
        axes_seen.append(axes)
        return original(axes, x, y, **style)

    monkeypatch.setattr(Axes, "step", step)
    found = table_of(store)
    return found, lines, axes_seen[-1].get_xscale() if axes_seen else ""


MIXED = [("unsat", 3.0), ("sat", 0.5), ("timeout", 20.0), ("unsat", 1.0), ("sat", 2.0), ("unsat", 1.0)]


def test_a_line_rises_by_one_at_the_time_of_each_solved_instance(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(new_store(command="verify"), [*MIXED, ("unsat", 0.0), ("timeout", 0.0)])
    store.write([of_case(0, 1, "unsat", 0.25)])  # The times of the cases of an instance add up.
    found, lines, scale = drawn_lines(store, monkeypatch)
    assert lines == {
        "both (5)": [(0.5, 1), (1.0, 2), (1.0, 3), (2.0, 4), (3.25, 5)],
        "unsat (3)": [(1.0, 1), (1.0, 2), (3.25, 3)],
        "sat (2)": [(0.5, 1), (2.0, 2)],
    }
    assert scale == "linear"
    assert found.caption == (
        "Instances solved within t seconds: 5 of 8. Not solved, and in no line: 2 (2 timeout). "
        "Solved without a recorded time, and in no line: 1."
    )
    assert column(found, "seconds") == ["3.25", "0.5", "20", "1", "2", "1", "–", "–"]
    text = Document(next(render_pages(store, "report-{}.html".format))).text
    assert found.caption in text


@pytest.mark.parametrize(("slowest", "scale"), [(20.0, "linear"), (20.5, "log")])
def test_the_time_axis_is_logarithmic_beyond_a_factor_20(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch, slowest: float, scale: str
) -> None:
    store = fill(new_store(command="verify"), [("sat", 1.0)] * 4 + [("sat", slowest)])
    _, lines, found = drawn_lines(store, monkeypatch)
    assert found == scale
    assert list(lines) == ["sat (5)"]  # One answer alone needs no line of both.


def test_fewer_than_five_solved_instances_have_no_chart(new_store: NewStore) -> None:
    found = table_of(fill(new_store(command="verify"), MIXED[:5]))
    assert found.plots is None
    assert not found.caption


def test_each_unsat_answer_names_its_certificate_or_the_reason(new_store: NewStore, tmp_path: Path) -> None:
    store = fill(new_store(command="verify"), [*MIXED, ("unsat", 1.0)])
    assert "certificate" not in dict(table_of(store).columns)  # The run was not asked for certificates.
    store.write([of_case(0, 1, "unsat", 1.0)])
    store.put_certificate(Key(0, 0), 0.0, "")
    store.put_certificate(Key(0, 1), None, "the checker does not know <Erf>")
    store.put_certificate(Key(3, 0), 0.0, "")
    store.put_certificate(Key(5, 0), -0.5, "")  # A score above -0.5 does not prove unsat.
    found = table_of(store)
    assert column(found, "certificate") == [
        "none: the checker does not know <Erf>", "", "", "accepted", "",
        "none: the accepted certificate proves too little", "none: not tried",
    ]  # fmt: skip
    sentence = "1 of 4 unsat answers has an accepted certificate"
    assert sentence in found.hint
    document = next(render_pages(store, "report-{}.html".format))
    assert sentence in document
    assert "&lt;Erf&gt;" in document
    store.put_certificate(Key(0, 1), 0.0, "")  # Tried again, with success.
    assert "2 of 4 unsat answers have an accepted certificate" in table_of(store).hint
    with hf.Store.read(merge([store.folder], tmp_path / "whole")) as whole:
        assert whole.certificates() == store.certificates()

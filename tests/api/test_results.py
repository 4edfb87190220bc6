"""What the public functions return: lists that print as tables, and become data frames, pages and decisions."""

import copy
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.api import results
from holdfast.question_text import describe_question

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
X = torch.rand(3, 3, 2)
Y = MODEL(X).argmax(1)
NET = hf.Network.from_torch(MODEL, domain=(0, 1), classes=["cat", "dog", "ship"])
WRONG = Y.clone()
WRONG[1] = (WRONG[1] + 1) % 3


@pytest.fixture(scope="module")
def radii() -> Any:
    return hf.radius(NET, X, WRONG, norm=2)


def test_a_result_is_a_list_as_before(radii: Any) -> None:
    first, *rest = radii
    assert isinstance(radii, list)
    assert isinstance(first, hf.Bracket)
    assert [first, *rest] == radii
    assert len(radii) == 3
    assert radii[-1] is rest[-1]
    assert radii.copy() == list(radii)
    assert len(radii[:2]) == 2


def test_bounds_are_tensors(radii: Any) -> None:
    assert radii.lower.dtype == radii.upper.dtype == torch.float64
    assert radii.lower.tolist() == [bracket.lower.value for bracket in radii]
    assert radii.upper.tolist() == [bracket.upper.value for bracket in radii]
    assert len(radii.witnesses) == 3
    assert len(radii.records) == 3


def test_it_prints_as_a_table_with_a_sentence(radii: Any) -> None:
    lines = str(radii).splitlines()
    assert lines[0].split() == ["input", "certified", "attacked", "class"]
    assert len(lines) >= 5
    assert max(map(len, lines)) <= 100
    sentence = " ".join(lines[4:])
    assert lines[2].endswith("<- misclassified")
    assert lines[1].split()[3] == NET.classes[int(Y[0])]  # type: ignore[index]
    assert sentence.startswith("2 of 3 inputs keep their class under any change of L2 size at most ")
    assert "; 1 is misclassified without any change (" in sentence
    assert "Weakest: input" in sentence
    assert repr(radii) == str(radii)
    assert str(radii).isascii()


def test_what_is_printed_is_rounded_outwards(radii: Any) -> None:
    for line, bracket in zip(str(radii).splitlines()[1:], radii, strict=False):
        if bracket.closed:
            continue
        _, certified, attacked, *_ = line.split()
        assert certified == "-" or float(certified) <= bracket.lower.value
        assert attacked == "-" or float(attacked) >= bracket.upper.value


def test_what_was_not_found_is_a_dash() -> None:
    found = hf.radius(NET, X[:1], Y[:1], methods=["certify"])
    assert str(found).splitlines()[1].split()[2] == "-"
    found = hf.radius(NET, X[:1], Y[:1], methods=["pgd"])
    assert str(found).splitlines()[1].split()[1] == "-"
    assert "nothing certified" in hf.radius(NET, X[:2], Y[:2], methods=["pgd"]).summary()


def test_counted_changes_are_shown_as_the_number_that_changes_the_class() -> None:
    found = hf.radius(NET, X[:1], Y[:1], norm=0)
    shown = str(found).splitlines()[1].split()
    if math.isfinite(found[0].upper.value):
        assert int(shown[2]) == found[0].upper.value + 1
    else:
        assert shown[2] == "none"


def test_html_escapes_names() -> None:
    net = hf.Network.from_torch(MODEL, domain=(0, 1), classes=["<b>", "<i>", "<script>"])
    page = hf.radius(net, X, Y, methods=["certify"])._repr_html_()
    assert page.startswith("<table>")
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<script>" not in page


def test_frames_have_tables_and_padded_tensors() -> None:
    found = hf.radius(NET, X[:2], Y[:2], norm=2, frames="each")
    assert found.lower.shape == found.upper.shape == (2, 3)
    assert found.lower[1, 2] == found[1][2].lower.value
    assert len(str(found).splitlines()) > 1 + 6
    assert [row["frame"] for row in found.frame_rows()] == [0, 1, 2] * 2
    assert "frame" in str(found[1]).splitlines()[0]


def test_to_frame(radii: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = radii.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["lower"].tolist() == radii.lower.tolist()
    assert {"input", "class", "upper", "exact", "upper_method", "note"} <= set(frame.columns)


def test_to_frame_without_pandas_says_what_to_install(radii: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hf.errors.MissingExtra, match=r"pip install 'holdfast\[tables\]'"):
        radii.to_frame()


@pytest.mark.parametrize("ending", [".html", ".md", ".json"])
def test_report_writes_a_page(radii: Any, ending: str, tmp_path: Path) -> None:
    path = radii.report(tmp_path / f"page{ending}")
    assert path.exists()
    assert path.stat().st_size > 500
    with pytest.raises(hf.HoldfastError, match="unknown ending"):
        radii.report(tmp_path / "page.txt")
    with pytest.raises(hf.HoldfastError, match="path: expected the path of a file"):
        radii.report(5)


def test_the_summary_is_the_first_line_of_the_page(radii: Any, tmp_path: Path) -> None:
    sentence = radii.summary().split(" (")[0]
    for ending in (".html", ".md"):
        assert sentence in radii.report(tmp_path / f"page{ending}").read_text().replace("\\", "")


def test_gate_decides_by_shares(radii: Any) -> None:
    assert radii.gate(1e-6, min_certified=0.6)
    found = radii.gate(1e-6, min_certified=0.9)
    assert not found
    assert not found.passed
    assert "gate: FAILED" in str(found)
    assert radii.gate(min_accuracy=0.6)
    assert not radii.gate(min_accuracy=0.7)
    for wrong, message in (
        ({}, "no rule is given"),
        ({"min_certified": 0.5}, "at: a share certified"),
        ({"at": 0.1, "min_certified": 50}, "min_certified: expected a share between 0 and 1"),
        ({"at": "a", "min_certified": 0.5}, "at: expected a number"),
    ):
        with pytest.raises(hf.HoldfastError, match=message):
            radii.gate(**wrong)


def test_a_result_can_be_pickled_and_copied(radii: Any) -> None:
    for other in (pickle.loads(pickle.dumps(list(radii))), copy.copy(radii)):
        assert other == list(radii)
    assert copy.copy(radii).summary() == radii.summary()


def test_a_list_made_by_hand_says_that_it_has_no_records() -> None:
    by_hand = results.RadiusList(hf.radius(NET, X, Y, methods=["pgd"]))
    assert len(str(by_hand).splitlines()) == 5
    with pytest.raises(hf.HoldfastError, match="no records to write"):
        by_hand.report("page.html")


def test_worst(tmp_path: Path) -> None:
    found = hf.worst(NET, hf.Ball(X, 0.01, math.inf, (0, 1)), hf.Robustness(WRONG))
    assert str(found).splitlines()[2].endswith("broken")
    assert found.summary() == (
        "2 of 3 inputs keep their class under any change of at most 0.01 per value, values staying in [0, 1]; "
        "1 is shown to change."
    )
    assert found.gate(min_certified=0.5)
    assert found.report(tmp_path / "worst.html").exists()


def test_risk_reach_bounds_and_smoothed(tmp_path: Path) -> None:
    risk = hf.risk(NET, X[:1], "confidence", radius=0.05, queries=50)
    assert "worst score" in str(risk)
    assert risk.report(tmp_path / "risk.html").exists()
    assert risk.frame_rows()[0]["worst_lower"] == risk[0].worst.lower.value
    ranges = hf.reach(NET, hf.Box.between(X[:1] - 0.01, X[:1] + 0.01))
    assert len(ranges) == 3
    assert (ranges.lower <= ranges.upper).all()
    assert ranges.summary().startswith("Output cat stays between ")
    assert ranges.summary().endswith(" in the box (proved).")
    bounds = hf.bounds(NET, hf.Ball(X, 0.01))
    assert len(str(bounds).splitlines()) == 1 + 9 + 1
    smoothed = hf.smoothed(NET, X, sigma=0.1, samples=100)
    assert len(smoothed.frame_rows()) == 3
    assert "not the network itself" in smoothed.summary()


def test_saliency_is_a_tensor_with_a_summary() -> None:
    found = hf.saliency(NET, X, Y)
    assert isinstance(found, torch.Tensor)
    assert found.shape == X.shape
    assert type(found[0]) is type(found.sum()) is torch.Tensor
    largest = int(found[0].argmax())
    assert f"input 0: unit ({largest // 2}, {largest % 2})" in found.summary()
    assert found.summary() in repr(found)
    assert torch.equal(pickle.loads(pickle.dumps(found)), found)


def test_testgen_prints_its_tests() -> None:
    found = hf.testgen(NET, X, "boundary", tests=2)
    assert len(str(found).splitlines()) == 1 + len(found) + 1
    assert "boundary coverage from" in found.summary()
    assert len(found.table().rows) == len(found)


def test_verify_prints_its_answer(tmp_path: Path) -> None:
    spec = tmp_path / "spec.vnnlib"
    lines = [f"(declare-const X_{k} Real)" for k in range(6)] + [
        f"(declare-const Y_{k} Real)" for k in range(3)
    ]
    lines += [f"(assert (>= X_{k} 0.0))\n(assert (<= X_{k} 0.1))" for k in range(6)]
    spec.write_text("\n".join([*lines, "(assert (>= Y_0 1000.0))"]))
    found = hf.verify(NET, spec)
    assert found.answer == "unsat"
    assert str(found).startswith("unsat: The property holds (unsat): ")
    spec.write_text("\n".join([*lines, "(assert (<= Y_0 1000.0))"]))
    found = hf.verify(NET, str(spec))
    assert found.answer == "sat"
    assert "input:" in str(found)


# ---- progress


class Terminal:
    """A standard error that is a terminal."""

    def __init__(self, tty: bool) -> None:
        self.text, self.tty, self.encoding = "", tty, "utf-8"

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.parametrize(
    ("tty", "progress", "shown"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_a_bar_is_shown_where_somebody_looks(
    tty: bool, progress: bool | None, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.api.progress import shows_progress

    terminal = Terminal(tty)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert shows_progress(progress) is shown
    monkeypatch.setenv("TERM", "xterm")
    hf.radius(NET, X, Y, methods=["pgd"], progress=progress)
    if not shown:
        assert terminal.text == ""
    elif tty:
        assert "radius" in terminal.text


def test_a_function_is_called_with_every_report() -> None:
    seen: list[Any] = []
    hf.radius(NET, X, Y, methods=["pgd"], progress=seen.append)
    assert seen
    assert seen[-1].total == 3


def test_the_page_states_every_restriction() -> None:
    """What a number depends on is a part of the question that its page shows."""
    found = hf.radius(
        NET, X, Y, norm=2, frames="all", shares=[1.0, 0.5, 0.25], targets="runner-up", methods=["pgd"]
    )
    asked = found._run().question
    text = describe_question(asked)
    for part in ("norm", "0.5", "runner-up", "every frame"):
        assert part in text, text
    free = torch.ones(3, 2, dtype=torch.bool)
    free[0] = False
    some = hf.radius(NET, X, Y, norm=0, free=free, values=[0.0, 1.0], unit="number", methods=["greedy"])
    text = describe_question(some._run().question)
    for part in ("numbers of", "a mask leaves free", "[0.0, 1.0]"):
        assert part in text, text
    worst = hf.worst(NET, hf.Ball(X, 0.01, 2, (0, 1)), "robustness", methods=["pgd"])
    text = describe_question(worst._run().question)
    for part in ("0.01", "L2", "robustness"):
        assert part in text, text


def test_an_input_that_ties_is_not_called_misclassified() -> None:
    """All outputs are zero, so that argmax gives the label, but no class leads."""
    tied = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Flatten()).eval()
    torch.nn.init.zeros_(tied[0].weight)
    torch.nn.init.zeros_(tied[0].bias)  # type: ignore[arg-type]
    result = hf.radius(tied, torch.rand(1, 2), [0])
    assert "<- tied with another class" in str(result)
    assert "1 ties with another class without any change" in result.summary()
    assert "misclassified" not in str(result)
    wrong = hf.radius(tied, torch.rand(2, 2), [1, 1])
    assert wrong.summary() == "Of 2 inputs, 2 are misclassified without any change."

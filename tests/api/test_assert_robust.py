"""`hf.assert_robust`, and the pytest plugin: they pass, fail and refuse where they should."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf

# One input at the distance 1 from the boundary x0 = x1, one at 2: in the maximum norm its radius is half of that.
MODEL = nn.Linear(2, 2, bias=False)
MODEL.weight.data = torch.eye(2)
X, Y = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), [0, 0, 1]
RADII = [0.5, 1.0, 0.5]


def test_it_passes_exactly_up_to_the_certified_radius() -> None:
    result = hf.assert_robust(MODEL, X, Y, radius=0.49)
    assert [round(float(lower), 3) for lower in result.lower] == RADII
    with pytest.raises(AssertionError, match=r"certified at 0.51: wanted at least 100 %, found 33.33 %"):
        hf.assert_robust(MODEL, X, Y, radius=0.51)
    assert hf.assert_robust(MODEL, X, Y, radius=0.51, min_certified=1 / 3)


def test_the_message_names_the_inputs_and_a_page_is_written_also_of_a_failure(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(AssertionError) as caught:
        hf.assert_robust(MODEL, X, [0, 1, 1], radius=0.51, report=page)
    text = str(caught.value)
    assert "input 0: broken (0.49" in text
    assert "input 1: broken (0, closed)" in text  # misclassified
    assert "<html" in page.read_text()


def test_without_a_proof_nothing_passes() -> None:
    """An attack that finds nothing, and a budget that ends at once, are no certificates."""
    for options in ({"methods": ["pgd"]}, {"seconds": 0}):
        with pytest.raises(AssertionError, match=r"0 .*certified|0 certified"):
            hf.assert_robust(MODEL, X, Y, radius=0.1, min_certified=0.01, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0}, "radius: expected a number above 0"),
        ({"radius": math.nan}, "radius: expected"),
        ({"radius": 0.1, "min_certified": 90}, "min_certified: expected a share between 0 and 1"),
        ({"radius": 0.1, "min_certified": "all"}, "min_certified: expected a number"),
    ],
)
def test_bad_rules_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(hf.HoldfastError, match=message):
        hf.assert_robust(MODEL, X, Y, **options)  # type: ignore[arg-type]


PROGRAM = """
import pytest, torch
from torch import nn

MODEL = nn.Linear(2, 2, bias=False)
MODEL.weight.data = torch.eye(2)
X, Y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [0, 1]

@pytest.mark.robust(radius=0.4)
def test_good(robust):
    assert len(robust(MODEL, X, Y)) == 2

@pytest.mark.robust(radius=0.6)
def test_bad(robust):
    robust(MODEL, X, Y)

@pytest.mark.robust(radius=0.6)
def test_replaced(robust):
    robust(MODEL, X, Y, radius=0.1)

def test_unmarked(robust):
    robust(MODEL, X, Y, radius=0.4, norm=2)

@pytest.mark.robust(radius=0.4)
def test_idle(robust):
    pass
"""
WITHOUT_FIXTURE = "import pytest\n@pytest.mark.robust(radius=1)\ndef test_lost():\n    pass\n"


class Outcomes:
    """Records how the tests of an inner run end."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.found.setdefault(report.outcome, []).append(report.nodeid.partition("::")[2])


def run_inner(folder: Path, program: str, *options: str) -> tuple[int, dict[str, list[str]]]:
    file = folder / f"test_inner_{folder.name}.py"
    file.write_text(program)
    seen = Outcomes()
    words = ["-q", "-p", "holdfast.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers"]
    code = pytest.main(
        [*words, f"--rootdir={folder}", "-c", str(folder / "none.ini"), str(file), *options], plugins=[seen]
    )
    return int(code), seen.found


def test_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "none.ini").write_text("[pytest]\n")
    code, found = run_inner(tmp_path, PROGRAM, f"--holdfast-report={tmp_path / 'pages'}")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert found["passed"] == ["test_good", "test_replaced", "test_unmarked", "test_idle"]
    assert found["failed"] == ["test_bad", "test_idle"]  # idle: at its teardown
    pages = [file.name for file in sorted((tmp_path / "pages").iterdir())]
    assert [name.partition("_test_")[2] for name in pages] == [
        "bad.html",
        "good.html",
        "replaced.html",
        "unmarked.html",
    ] or len(pages) == 4


def test_a_marker_without_the_fixture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.ini").write_text("[pytest]\n")
    code, _ = run_inner(tmp_path, WITHOUT_FIXTURE)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "does not take it" in "".join(capsys.readouterr())

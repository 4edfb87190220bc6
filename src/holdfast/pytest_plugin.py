"""A pytest plugin: the fixture `robust`, the marker of the same name, and pages of the results.

    @pytest.mark.robust(radius=0.02, min_certified=0.9, domain=(0, 1))
    def test_my_model(robust):
        robust(model, x, y)

The marker holds options of `hf.assert_robust`; a call may add and replace some. A marked test that never calls
`robust` fails, since it would pass without checking anything. With `--holdfast-report FOLDER` each call writes its
page into the folder.

pytest loads this file at its start, so nothing heavy is imported before a test calls the fixture.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.api.results import RadiusList

MARKER = "robust"
FOLDER = "--holdfast-report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for pages."""
    parser.getgroup("holdfast").addoption(
        FOLDER, metavar="FOLDER", help="write a page of every robustness check into this folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that --strict-markers knows it."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(radius, min_certified=1.0, **options): options of holdfast.assert_robust for the fixture "
        f"'{MARKER}'",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker on a test without the fixture: such a test would check nothing."""
    for item in items:
        if item.get_closest_marker(MARKER) and MARKER not in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(
                f"{item.nodeid}: the marker '{MARKER}' holds options of the fixture '{MARKER}', and this test "
                f"does not take it. Write def {item.name.partition('[')[0]}({MARKER}): {MARKER}(model, x, y)."
            )


@pytest.fixture
def robust(request: pytest.FixtureRequest) -> Iterator[Callable[..., "RadiusList"]]:
    """`hf.assert_robust` with the options of the marker, as a function of model, inputs and classes."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{request.node.nodeid}: name the options of the marker, as in radius=0.02.")
    options = {} if marker is None else dict(marker.kwargs)
    folder, calls = request.config.getoption(FOLDER), 0

    def check(net: Any, x: Any, y: Any = None, **more: Any) -> "RadiusList":
        from holdfast.api.assert_robust import assert_robust  # Here because it imports torch.

        nonlocal calls
        calls += 1
        page = _page(folder, request.node.nodeid, calls)
        return assert_robust(net, x, y, **{"progress": False, "report": page, **options, **more})

    yield check
    if marker is not None and not calls:
        pytest.fail(f"the test is marked '{MARKER}' and never called the fixture, so it checked nothing")


def _page(folder: str | None, name: str, number: int) -> Path | None:
    """The file for the page of a call; None without the option."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"[^\w.\[\]-]+", "_", name)
    return Path(folder, f"{plain}{'' if number == 1 else f'-{number}'}.html")

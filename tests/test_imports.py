"""The layers of the package: imports point down, and the packages of one task never import those of another."""

import ast
import functools
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "holdfast"

TASK_PACKAGES = (
    "certify",
    "hamming",
    "verification",
    "lipschitz",
    "coverage",
    "monitor",
    "hardening",
    "reachability",
)
LAYERS = [
    (
        "foreign_text",
        "errors",
        "files",
        "memory_budget",
        "time_limit",
        "process_state",
        "cuda_graphs",
        "goals",
        "result",
        "batch",
        "rounding",
        "derivations",
        "random_streams",
        "formatting",
        "signals",
    ),
    ("network", "region", "property"),
    (
        "question",
        "question_words",
        "request",
        "question_text",
        "problem",
        "method",
        "replay",
        "execution",
        "batch_state",
        "batch_solver",
        "solver",
        "store",
    ),
    ("bounding", "attacks", "datasets", "reading"),
    TASK_PACKAGES,
    ("edits",),  # It uses the monitor's engine.
    ("certificates",),
    ("api", "report"),
    ("evidence",),
    ("commands",),
    ("cli", "pytest_plugin"),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PUBLIC_FACE = ("__init__", "__main__")  # the public face may name everything; it loads lazily


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The package or module right under holdfast."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@functools.cache
def imported(path: Path) -> set[str]:
    """The parts of holdfast that a file imports anywhere, for types too; `import holdfast` itself is '__init__'."""
    package = ["holdfast", *path.relative_to(SOURCE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names] if stem == "holdfast" else [stem]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "holdfast":
                found.add(parts[1] if len(parts) > 1 else "__init__")
    return found


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part_of(path) for path in modules()} - set(PUBLIC_FACE)
    assert parts <= LEVEL.keys(), f"{parts - LEVEL.keys()} must be given a layer in LAYERS"


@pytest.mark.parametrize(
    "path", [p for p in modules() if part_of(p) not in PUBLIC_FACE], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_point_down(path: Path) -> None:
    here = part_of(path)
    for there in imported(path) - {here, "__version__", *PUBLIC_FACE}:
        assert there in LEVEL, f"{path.name} imports holdfast.{there}, which has no layer"
        assert LEVEL[there] <= LEVEL[here], (
            f"holdfast.{here} (layer {LEVEL[here]}) imports holdfast.{there} (layer {LEVEL[there]})"
        )
        if here in TASK_PACKAGES:
            assert there not in TASK_PACKAGES, f"the task package {here} imports the task package {there}"


def test_only_the_store_the_report_and_the_command_line_look_at_the_whole_package() -> None:
    """`import holdfast` below could go round in circles; these need its version or its public face."""
    assert {part_of(path) for path in modules() if "__init__" in imported(path)} <= {
        "store",
        "report",
        "evidence",
        "commands",
        "cli",
    }


def test_the_test_can_see() -> None:
    """The parser finds what it should: plain, from, relative and nested imports."""
    assert {"region", "errors"} <= imported(SOURCE / "network" / "network.py")
    assert {"problem", "method", "network", "property", "result", "errors"} <= imported(
        SOURCE / "batch_solver.py"
    )

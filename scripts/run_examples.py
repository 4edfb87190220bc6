"""Update the pages of examples/ with their scripts and output: python scripts/run_examples.py [NAME ...]

A page examples/NAME.md contains the script in its Python block and the output in its text block. `--
ARGUMENT` passes an argument to the script, as in: python scripts/run_examples.py aircraft --
../shared/data/acasxu
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE, SAID = (re.compile(rf"(?<=```{kind}\n).*?(?=```)", re.DOTALL) for kind in ("python", "text"))


def scripts() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def page_of(script: Path) -> Path:
    return script.with_suffix(".md")


def printed(script: Path, *arguments: str) -> str:
    """Output of the script in an empty folder, without the path of its arguments' data."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, script, *arguments], cwd=folder, env=environment, capture_output=True, text=True
        )
    if ran.returncode:
        raise SystemExit(f"{script.name}: {ran.stderr.strip()}")
    return ran.stdout


def written(page: str, code: str, said: str | None = None) -> str:
    """The page with this script and its output."""
    page = CODE.sub(lambda _: code, page, count=1)
    return page if said is None else SAID.sub(lambda _: said, page, count=1)


if __name__ == "__main__":
    names, _, rest = (part.split() for part in " ".join(sys.argv[1:]).partition("--"))
    for script in scripts():
        if not names or script.stem in names:
            page = page_of(script)
            arguments = [str(Path(word).resolve()) if Path(word).exists() else word for word in rest]
            page.write_text(written(page.read_text(), script.read_text(), printed(script, *arguments)))
            print(page.relative_to(ROOT))

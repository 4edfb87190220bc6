"""From a mail attachment to 'I have checked these claims', on a machine that has Python and nothing else.

    python scripts/assessor_walk.py WHEEL BUNDLE PUBLIC_KEY [MODEL]

Makes an empty virtual environment, installs the wheel of holdfast-check and numpy in it, and checks the bundle. Prints
each command with its seconds of the processor and of the clock, and the sizes of what was received and installed. Exits
with the code of the check.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def run_step(name: str, command: Sequence[str | Path]) -> int:
    """Run one command, and print what it took."""
    print(f"$ {' '.join(str(part) for part in command)}", flush=True)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run([str(part) for part in command], env=_bare_environment(), check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"  {name}: exit code {ended.returncode}, {spent:.1f} CPU-s, {time.monotonic() - begun:.1f} s\n",
        flush=True,
    )
    return ended.returncode


def _bare_environment() -> dict[str, str]:
    """The environment without anything that could lead to packages of this machine."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("key", type=Path)
    parser.add_argument("model", type=Path, nargs="*")
    parser.add_argument("--python", default=sys.executable, help="the Python to begin with")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assessor-") as place:
        bare = Path(place) / "bare"
        for name, command in (
            ("1. an empty environment", [given.python, "-m", "venv", bare]),
            (
                "2. the checker and numpy",
                [bare / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", given.wheel],
            ),
        ):
            if run_step(name, command):
                return 1
        models = [part for model in given.model for part in ("--model", model)]
        command = [bare / "bin" / "holdfast-check", given.bundle, "--public-key", given.key, *models]
        code = run_step("3. the check", command)
        listed = subprocess.run(
            [bare / "bin" / "pip", "list", "--format=freeze", "--disable-pip-version-check"],
            capture_output=True, text=True, check=False, env=_bare_environment(),
        )  # fmt: skip
        print("installed:", ", ".join(listed.stdout.split()))
        print(
            f"sizes: bundle {given.bundle.stat().st_size} bytes, wheel {given.wheel.stat().st_size} bytes, "
            f"environment {size_of(bare) / 2**20:.0f} MiB; largest memory of a step "
            f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB"
        )
    return code


if __name__ == "__main__":
    sys.exit(main())

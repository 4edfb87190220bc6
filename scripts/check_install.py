"""Install wheel and sdist without the repository: python scripts/check_install.py [--borrow] [PYTHON ...]

For each Python (default: the installed ones of 3.11, 3.12 and 3.13), wheel and sdist are built and each is
installed into a new environment. `holdfast --version`, `import holdfast` and `holdfast demo` then run in an
empty folder. This downloads torch once for each environment. --borrow installs without dependencies and uses
the packages of the current environment, which must have the same version of Python.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")


def built(folder: Path) -> list[Path]:
    """Build the wheel and the sdist of the tree; return their paths."""
    for kind in ("wheel", "sdist"):
        code = f"import hatchling.build as b; b.build_{kind}({str(folder)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def version_of(python: str) -> str | None:
    """Version of a Python interpreter; None if it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else None


def found() -> list[str]:
    near = [*(Path.home() / ".pyenv" / "versions").glob("3.1[123].*/bin/python")]
    names = [*map(str, near), *(path for version in VERSIONS if (path := shutil.which(f"python{version}")))]
    known = {version: name for name in reversed(names) if (version := version_of(name)) in VERSIONS}
    return [known[version] for version in sorted(known, key=str)]


def tried(python: str, package: Path, borrow: bool) -> str:
    """Install and run a package; return the error, or an empty text."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    with tempfile.TemporaryDirectory() as folder:
        place, empty = Path(folder) / "venv", Path(folder) / "empty"
        empty.mkdir()
        binaries = place / "bin"
        if borrow:
            subprocess.run([python, "-m", "venv", place], check=True, env=environment)
            [packages] = place.glob("lib/python3.*/site-packages")
            (packages / "zz_borrowed.pth").write_text(
                sysconfig.get_paths()["purelib"] + "\n"
            )  # Searched after the packages of the new environment.
            install = [
                binaries / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                package,
            ]
        else:
            subprocess.run([python, "-m", "venv", place], check=True, env=environment)
            install = [binaries / "python", "-m", "pip", "install", "--quiet", package]
        where = (
            f"import holdfast, sys; assert holdfast.__file__.startswith({str(place)!r}), holdfast.__file__"
        )
        for step in (
            install,
            [binaries / "python", "-c", where],
            [binaries / "holdfast", "--version"],
            [binaries / "holdfast", "demo"],
        ):
            ran = subprocess.run(step, cwd=empty, env=environment, capture_output=True, text=True)
            if ran.returncode:
                return f"{' '.join(map(str, step[:4]))}: {(ran.stderr or ran.stdout).strip()[-600:]}"
        return "" if (empty / "runs" / "demo" / "index.html").is_file() else "the demo wrote no page"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--borrow", action="store_true", help="use the packages of this environment")
    chosen = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        packages = built(Path(folder))
        for python in chosen.pythons or ([sys.executable] if chosen.borrow else found()):
            for package in packages:
                said = tried(python, package, chosen.borrow)
                wrong += bool(said)
                print(
                    f"{version_of(python)} {package.name}: "
                    f"{said or 'installs, and the demo runs from an empty folder'}",
                    flush=True,
                )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

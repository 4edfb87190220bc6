"""Programs of documents in a copy of this process, which has torch and its tracer at hand.

A new process takes 2 to 5 CPU-s to import torch and holdfast and to trace for the first time. Where copies cannot
compute gradients, because this process may use CUDA, and at full size, a new process runs the program instead.
"""

import functools
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import holdfast as hf
from sizes import FULL

SOURCE = Path(__file__).parents[1] / "src"
COPIES = torch.version.cuda is None and not FULL


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@functools.cache
def prepare_tracer() -> None:
    """Trace something, so that no copy of this process has to import and to prepare what torch.export needs."""
    hf.Network.from_torch(torch.nn.Linear(2, 2).eval()).program(torch.zeros(1, 2))


def run_in_copy(
    work: Callable[[], object], folder: Path, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a function in a copy of this process that works in a folder: the exit code, standard output and error."""
    prepare_tracer()
    files = [folder / "standard_output.txt", folder / "standard_error.txt"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number, file in enumerate(files, 1):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115  not pytest's
            os.chdir(folder)
            os.environ.update({**environment(), **(variables or {})})
            sys.path.insert(0, "")
            work()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    return status, said[0], said[1]


def run_code(code: str, folder: Path) -> tuple[int, str, str]:
    """Run the text of a program in a folder, with long lines: the exit code, standard output and error."""
    variables = {"COLUMNS": "200"}
    if COPIES:
        names = {"__name__": "__main__"}
        return run_in_copy(lambda: exec(compile(code, "example", "exec"), names), folder, variables)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**environment(), **variables}, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


def run_script(script: Path, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a script in a folder, with lines of at most 120 columns: the exit code, standard output and error."""
    variables = {"COLUMNS": "120"}
    if COPIES:

        def work() -> None:
            sys.argv = [str(script), *arguments]
            sys.path.insert(0, str(script.parent))
            runpy.run_path(str(script), run_name="__main__")

        return run_in_copy(work, folder, variables)
    command = [sys.executable, str(script), *arguments]
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**environment(), **variables}, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr

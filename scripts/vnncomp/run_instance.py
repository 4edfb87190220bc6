"""Answer one instance of VNN-COMP and write its result file; `run_instance.sh` calls it.

    python run_instance.py v1 CATEGORY ONNX VNNLIB RESULT_FILE TIMEOUT

ONNX is a file, or "[('f', 'f.onnx'), ('g', 'g.onnx')]" for a property of several networks. The first line of the
result file is sat, unsat, timeout, unknown or error. After sat follows the counterexample: ((X_0 ...) ... (Y_0 ...)) for
VNN-LIB 1, a block for each declared tensor for VNN-LIB 2. The exit code is 0 unless the arguments are wrong.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

VERSION = "v1"
ANSWERS = ("sat", "unsat", "timeout", "unknown")
# Seconds of the budget that start-up and the writing of the result need after the search (chosen by hand).
RESERVED = 2.0


def main(arguments: Sequence[str], begun: float) -> int:
    """Run the instance; `begun` is time.monotonic() at the start of the process."""
    if len(arguments) != 6 or arguments[0] != VERSION:
        print(f"expected: {VERSION} CATEGORY ONNX VNNLIB RESULT_FILE TIMEOUT", file=sys.stderr)
        return 1
    _, category, onnx, vnnlib, result, timeout = arguments
    try:
        seconds = float(timeout)
    except ValueError:
        print(f"timeout {timeout!r}: expected a number of seconds", file=sys.stderr)
        return 1
    print(f"holdfast, category {category}: {onnx} {vnnlib}, {seconds:g} s", flush=True)
    write_whole(Path(result), "error\n")  # Stays if the process is killed.
    text = answer(onnx, vnnlib, max(0.1, seconds - RESERVED - (time.monotonic() - begun)))
    write_whole(Path(result), text)
    print(text.partition("\n")[0])
    return 0


def answer(onnx: str, vnnlib: str, seconds: float) -> str:
    """The content of the result file."""
    from holdfast.cli import main as holdfast

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            holdfast(["verify", onnx, vnnlib, "--seconds", f"{seconds:.3f}"])
        except SystemExit as ended:
            if ended.code not in (0, None):
                return "error\n"
    # Remarks begin with a semicolon; the competition reads answers and numbers only.
    lines = [line for line in said.getvalue().splitlines() if line.strip() and not line.startswith(";")]
    if not lines or lines[0] not in ANSWERS:
        return "error\n"
    return "\n".join(lines if lines[0] == "sat" else lines[:1]) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], time.monotonic()))

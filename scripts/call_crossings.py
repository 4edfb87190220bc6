"""Count the modules that one request crosses, and the pairs of modules that call each other.

    python scripts/call_crossings.py            # hf.radius on the digits LSTM, tier "tight", one digit
    python scripts/call_crossings.py --list     # names the modules and the pairs

What is counted, while `hf.radius` runs (sys.setprofile and threading.setprofile, so every Python call is seen):

- A module is crossed if one of its functions runs that does work of its own: not a property, a special method, a
  lambda or a comprehension, and with more than one statement after its docstring. Modules of which only such small
  functions run (plain values, one-line accessors) are not counted. Nor are the lowest layer of docs/architecture.md
  (PLAIN: values and services that every module uses) and the model (datasets).
- A pair calls both ways if a function of the first directly calls one of the second, and one of the second one of
  the first, during the request. The caller is the nearest function of holdfast on the stack, so a callback through
  torch counts for the module whose function called torch. Both modules must be crossed ones.

The counts depend on the request and not on the machine. Code at the top of a module (imports) is not counted.
"""

import argparse
import ast
import functools
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import holdfast as hf
from holdfast.datasets.digits import digits
from holdfast.datasets.digits_networks import digits_lstm

PACKAGE = Path(hf.__file__).parent
ROWS = 2  # Rows of the digit that the LSTM reads: more make the request longer and call nothing else.
PLAIN = {
    *(
        "batch",
        "cuda_graphs",
        "errors",
        "files",
        "foreign_text",
        "formatting",
        "memory_budget",
        "process_state",
    ),
    *("random_streams", "result", "rounding", "signals", "time_limit"),
}
Calls = Counter[tuple[str, str]]  # (calling module, called module): number of calls.


def module_name(file: str) -> str | None:
    """Return 'bounding.crown' for a file of the package; None for any other."""
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return None
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "holdfast"


@functools.cache
def working_functions(file: str) -> frozenset[int]:
    """Return the first lines (decorators included) of the functions of a file that do work of their own."""
    found = set()
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        special = node.name.startswith("__") and node.name.endswith("__")
        accessor = any(ast.unparse(one).endswith("property") for one in node.decorator_list)
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not special and not accessor and len(body) > 1:
            found.add(min([node.lineno, *(one.lineno for one in node.decorator_list)]))
    return frozenset(found)


class Recorder:
    """A profile function that records which modules run, and which module calls which."""

    def __init__(self) -> None:
        self.crossed: set[str] = set()
        self.calls: Calls = Counter()
        self.names: dict[CodeType, str | None] = {}

    def name_of(self, code: CodeType) -> str | None:
        """Return the module of a function's code; None outside the package and for a module's own code."""
        if code not in self.names:
            self.names[code] = None if code.co_name == "<module>" else module_name(code.co_filename)
        return self.names[code]

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (name := self.name_of(frame.f_code)) is None:
            return
        counts = name not in PLAIN and not name.startswith("datasets.")
        if counts and frame.f_code.co_firstlineno in working_functions(frame.f_code.co_filename):
            self.crossed.add(name)
        caller = frame.f_back
        while caller is not None and self.name_of(caller.f_code) is None:
            caller = caller.f_back
        if caller is not None and (other := self.name_of(caller.f_code)) != name:
            assert other is not None
            self.calls[other, name] += 1

    def mutual_pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of crossed modules that call both ways, each once."""
        return sorted(
            (one, other)
            for one, other in self.calls
            if one < other and (other, one) in self.calls and {one, other} <= self.crossed
        )


def record_request() -> Recorder:
    """Run hf.radius on one digit and the LSTM that ships with holdfast, and record its calls."""
    net, test = digits_lstm(), digits("test")
    x, y = test.x.flatten(1, 2)[:1, :ROWS], test.y[:1]
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        hf.radius(net, x, y, norm=2, domain=(0, 1), tier="tight")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the modules and the pairs")
    arguments = parser.parse_args()
    recorder = record_request()
    pairs = recorder.mutual_pairs()
    print(f"{len(recorder.crossed)} modules crossed, {len(pairs)} pairs that call both ways")
    if arguments.list:
        print("\n".join(sorted(recorder.crossed)))
        for one, other in pairs:
            print(f"{one} <-> {other}: {recorder.calls[one, other]} and {recorder.calls[other, one]} calls")


if __name__ == "__main__":
    main()

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

Not every such pair is a cycle in knowledge. Both numbers are printed, that of all pairs and those of each kind, by the
direction that knows less:

- base class: every call in one direction is to a method that overrides one of a class in the calling module. A base
  class that calls its subclass through an abstract method knows the method and not the subclass.
- given function: every call in one direction is to such a method, or to a function that is nested in another one (a
  lambda, a closure). The caller can only have received it as an argument, and knows its signature and not its module.
- direct: neither; a function in each of the two modules names one in the other, or finds it in a table.

The counts depend on the request and not on the machine. What runs while a module is imported is not counted.
"""

import argparse
import ast
import functools
import operator
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
KINDS = ("base class", "given function", "direct")  # Of pairs, from the least knowledge to the most.


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


@functools.cache
def kind_of_call(caller: str, code: CodeType) -> int:
    """Return what the calling module must know of a function that it calls, as an index of KINDS."""
    if "<locals>" in code.co_qualname:
        return KINDS.index("given function")
    owner, _, name = code.co_qualname.rpartition(".")
    module = (
        "holdfast"
        if module_name(code.co_filename) == "holdfast"
        else f"holdfast.{module_name(code.co_filename)}"
    )
    kind = operator.attrgetter(owner)(sys.modules[module]) if owner else None
    bases = kind.__mro__[1:] if isinstance(kind, type) else ()
    overrides = any(base.__module__ == f"holdfast.{caller}" and name in vars(base) for base in bases)
    return KINDS.index("base class" if overrides else "direct")


class Recorder:
    """A profile function that records which modules run, and which module calls which."""

    def __init__(self) -> None:
        self.crossed: set[str] = set()
        self.calls: Calls = Counter()
        self.kinds: dict[tuple[str, str], int] = {}  # The most that a direction knows, as an index of KINDS.
        self.names: dict[CodeType, str | None] = {}
        self.imports = threading.local()  # depth: how many modules are being imported by this thread

    def name_of(self, code: CodeType) -> str | None:
        """Return the module of a function's code; None outside the package and for a module's own code."""
        if code not in self.names:
            self.names[code] = None if code.co_name == "<module>" else module_name(code.co_filename)
        return self.names[code]

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_name == "<module>" and event in ("call", "return"):
            self.imports.depth = getattr(self.imports, "depth", 0) + (1 if event == "call" else -1)
        if event != "call" or (name := self.name_of(frame.f_code)) is None:
            return
        if getattr(self.imports, "depth", 0):
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
            kind = kind_of_call(other, frame.f_code)
            self.kinds[other, name] = max(kind, self.kinds.get((other, name), 0))

    def mutual_pairs(self) -> list[tuple[str, str, str]]:
        """Return the pairs of crossed modules that call both ways, each once, with their kind."""
        return sorted(
            (one, other, KINDS[min(self.kinds[one, other], self.kinds[other, one])])
            for one, other in self.calls
            if one < other and (other, one) in self.calls and {one, other} <= self.crossed
        )


def record_request() -> Recorder:
    """Run hf.radius on one digit and the LSTM that ships with holdfast, and record its calls."""
    net, test = digits_lstm(), digits("test")
    x, y = test.x.flatten(1, 2)[:1, :ROWS], test.y[:1]
    recorder, radius = Recorder(), hf.radius
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        radius(net, x, y, norm=2, domain=(0, 1), tier="tight")
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
    of_kind = Counter(kind for _, _, kind in pairs)
    kinds = ", ".join(f"{of_kind[kind]} {kind}" for kind in KINDS)
    print(f"{len(recorder.crossed)} modules crossed, {len(pairs)} pairs that call both ways ({kinds})")
    if arguments.list:
        print("\n".join(sorted(recorder.crossed)))
        for one, other, kind in pairs:
            counts = f"{recorder.calls[one, other]} and {recorder.calls[other, one]} calls"
            print(f"{one} <-> {other}: {kind}, {counts}")


if __name__ == "__main__":
    main()

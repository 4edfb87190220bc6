"""Names and units of inputs and outputs, for sentences about claims: from a .csv file, from comments of a
VNN-LIB file, from columns and classes of the data.

A file of names has the columns variable, name, unit, scale and shift, of which the last three may be missing:

    variable,name,unit,scale,shift
    X_0,distance,ft,60261,19791.091
    Y_0,clear of conflict,,,

X_0 is the first input and Y_0 the first output, as in VNN-LIB. The quantity with this name is scale times the
network's number plus shift. A comment of a VNN-LIB file names a variable as in "; X_0: speed [m/s]".
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdfast.errors import BadInput, HoldfastError
from holdfast.files import read_unpacked
from holdfast_check.claim_text import UNIT, ClaimNames, VariableLabel, is_name

MOST_BYTES = 2**22  # Size of a file of names in bytes (chosen by hand).
COMMENTED_BYTES = 2**16  # Bytes of a VNN-LIB file that are searched for names (chosen by hand).
VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,5})")
COMMENT = re.compile(
    r";\s*([XY]_\d{1,6})\s*[:=]\s*([^\[\](){}:;]{1,60}?)\s*(?:[\[(]([^\])]{1,20})[\])])?\s*$"
)
HEADINGS = ("variable", "name", "unit", "scale", "shift")
IN_BRACKETS = re.compile(r"(.*?)\s*[\[(]([^\])]{1,20})[\])]\s*")  # 'width (cm)' as a column of a table.
Labels = Mapping[str, VariableLabel]  # By variable: "X_0".


def read_names(path: str | Path) -> dict[str, VariableLabel]:
    """Read a file of names. BadInput or UnreadableFile with the line that is wrong."""
    data = read_unpacked(
        Path(path), MOST_BYTES, f"larger than {MOST_BYTES} bytes, which no file of names is."
    )
    try:
        lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: not a .csv file in UTF-8 ({error}).") from error
    heading = [cell.strip() for cell in lines[0]] if lines else []
    if not {"variable", "name"} <= set(heading) <= set(HEADINGS) or len(set(heading)) < len(heading):
        raise BadInput(
            f"{path}: its first line is {','.join(heading)[:80]!r}; write 'variable,name' and, if you want, "
            "'unit', 'scale' and 'shift'."
        )
    found: dict[str, VariableLabel] = {}
    for number, cells in enumerate(lines[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        given = dict(zip(heading, (cell.strip() for cell in cells), strict=False))
        where = f"{path}, line {number}"
        if len(cells) != len(heading) or VARIABLE.fullmatch(given["variable"]) is None:
            raise BadInput(f"{where}: write a variable such as X_0 or Y_0, and {len(heading)} columns.")
        if given["variable"] in found:
            raise BadInput(f"{where}: {given['variable']} has a name already.")
        try:
            found[given["variable"]] = VariableLabel(
                given["name"],
                given.get("unit", ""),
                float(given.get("scale") or 1),
                float(given.get("shift") or 0),
            )
        except ValueError as error:
            raise BadInput(f"{where}: {error}.") from error
    return found


def names_in_comments(path: str | Path) -> dict[str, VariableLabel]:
    """The names in comments at the beginning of a VNN-LIB file. Comments that are no names are ignored."""
    try:
        data = read_unpacked(Path(path), 2**31, "too large.")[:COMMENTED_BYTES]
    except HoldfastError:
        return {}
    found: dict[str, VariableLabel] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        match = COMMENT.search(line) if line.lstrip().startswith(";") else None
        if match and is_name(match[2]):
            unit = match[3] if match[3] and UNIT.fullmatch(match[3]) else ""
            found.setdefault(match[1], VariableLabel(match[2], unit))
    return found


def as_labels(letter: str, names: Iterable[str]) -> dict[str, VariableLabel]:
    """Names of columns or classes as labels; characters that a name cannot have are replaced."""
    found: dict[str, VariableLabel] = {}
    for place, text in enumerate(names):
        match = IN_BRACKETS.fullmatch(text)
        unit = match[2] if match and UNIT.fullmatch(match[2]) else ""
        name = _safe_name(match[1] if match and unit else text, "class" if letter == "Y" else "column")
        if name and name not in {label.name for label in found.values()}:
            found[f"{letter}_{place}"] = VariableLabel(name, unit)
    return found


def _safe_name(text: str, prefix: str) -> str:
    """The text as a name, with the prefix where it begins with a digit; empty if it cannot become one."""
    joined = re.sub(r"[^\w.-]+", "_", text.strip())[:50].strip("_")
    for candidate in (text.strip(), joined, f"{prefix}_{joined}" if joined else ""):
        if candidate and is_name(candidate):
            return candidate
    return ""


def claim_names(inputs: int, outputs: int, *sources: Labels) -> ClaimNames:
    """The labels of a claim: for inputs and for outputs the first source that names them all.

    A source that names only some inputs (or outputs) names the others by their variables.
    """
    sides: list[tuple[VariableLabel, ...]] = []
    for letter, count in (("X", inputs), ("Y", outputs)):
        side: tuple[VariableLabel, ...] = ()
        for source in sources:
            if any(name.startswith(letter) for name in source) and not side:
                each = [source.get(f"{letter}_{k}", VariableLabel(f"{letter}_{k}")) for k in range(count)]
                side = tuple(each) if len({one.name for one in each}) == count else ()
        sides.append(side)
    return ClaimNames(*sides)


def check_names(labels: Labels, inputs: int | None, outputs: int | None, where: str) -> None:
    """BadInput if a variable does not exist, or if two variables have the same name."""
    for letter, what, count in (("X", "inputs", inputs), ("Y", "outputs", outputs)):
        own = [name for name in labels if name.startswith(letter)]
        beyond = [name for name in own if count is not None and int(name[2:]) >= count]
        if beyond:
            raise BadInput(
                f"{where}: {beyond[0]} does not exist: the network has {count} {what}, from {letter}_0."
            )
        twice = _find_repeated([labels[name].name for name in own])
        if twice:
            raise BadInput(f"{where}: two of the {what} are called {twice!r}.")


def _find_repeated(names: Sequence[str]) -> str:
    return next((name for place, name in enumerate(names) if name in names[:place]), "")

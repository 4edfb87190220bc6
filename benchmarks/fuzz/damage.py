"""Random damage to bytes, text and JSON."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
NUMBERS = (
    "0",
    "-0.0",
    "-1",
    "1",
    "2",
    "3",
    "255",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "1099511627776",
    "1e308",
    "1e-320",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "nan",
    "inf",
    "9" * 30,
    "1" + "0" * 500,
    "0.1",
    "1e-400",
    "0x10",
    "1_000",
    "٣",
    "²",
    "true",
    "null",
    "",
)
WORDS = (
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\n",
    "\t",
    "\0",
    ",",
    ";",
    ":",
    "\ufeff",
    "\u2028",
    "\ud7ff",
    "and",
    "or",
    "assert",
    "X_0",
    "Y_0",
    "\\u0000",
    "\\ud800",
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    7,
    2**31,
    2**40,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "\ud800",
    "9" * 400,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    "proved",
    "witnessed",
    "groups",
    "typos",
    "noise",
    "abstract",
    "exact",
    "helpdesk",
)


def flipped(data: bytearray, chance: Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def truncated(data: bytearray, chance: Random) -> None:
    del data[chance.randrange(len(data)) :]


def cut(data: bytearray, chance: Random) -> None:
    begin, end = _range(data, chance)
    del data[begin:end]


def doubled(data: bytearray, chance: Random) -> None:
    begin, end = _range(data, chance)
    data[end:end] = data[begin:end] * chance.choice((1, 1, 3, 50))


def moved(data: bytearray, chance: Random) -> None:
    begin, end = _range(data, chance)
    part = data[begin:end]
    del data[begin:end]
    at = chance.randrange(len(data) + 1)
    data[at:at] = part


def overwritten(data: bytearray, chance: Random) -> None:
    """Overwrite 1, 2, 4 or 8 bytes with an integer, as headers store them."""
    size = chance.choice((1, 2, 4, 8))
    value = chance.choice(
        (0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), chance.randrange(2 ** (8 * size - 1)))
    )
    at = chance.randrange(len(data))
    data[at : at + size] = value.to_bytes(size, chance.choice(("little", "big")), signed=True)


def inserted(data: bytearray, chance: Random) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.choice(
        (chance.randbytes(chance.choice((1, 4, 64))), bytes(chance.choice((1, 8, 1000))), b"\xff" * 16)
    )


def renumbered(data: bytearray, chance: Random) -> None:
    """Replace a number in a text by another."""
    places = [m.span() for m in NUMBER.finditer(data)]
    if places:
        begin, end = chance.choice(places)
        data[begin:end] = chance.choice(NUMBERS).encode()


def reworded(data: bytearray, chance: Random) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = (chance.choice(WORDS) * chance.choice((1, 1, 1, 40))).encode(errors="surrogatepass")


def _range(data: bytearray, chance: Random) -> tuple[int, int]:
    begin = chance.randrange(len(data))
    return begin, min(len(data), begin + chance.choice((1, 3, 16, 200, len(data))))


BYTES: tuple[Callable[[bytearray, Random], None], ...] = (
    flipped,
    truncated,
    cut,
    doubled,
    moved,
    overwritten,
    inserted,
)
TEXT = (*BYTES, renumbered, renumbered, renumbered, reworded, reworded)


def damaged(data: bytes, chance: Random, others: list[bytes], *, text: bool = False) -> bytes:
    """Apply one to three random changes, or join the beginning of one file with the end of another."""
    found = bytearray(data)
    if others and chance.random() < 0.1:
        other = chance.choice(others)
        return bytes(found[: chance.randrange(len(found) + 1)]) + other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((1, 1, 2, 3))):
        if found:
            chance.choice(TEXT if text else BYTES)(found, chance)
    return bytes(found)


def damaged_json(data: bytes, chance: Random) -> bytes:
    """Replace, delete or duplicate one value at any depth."""
    try:
        whole = json.loads(data)
    except ValueError:
        return data
    places = list(_places(whole))
    if not places:
        return json.dumps(chance.choice(SCALARS)).encode()
    inside, key = chance.choice(places)
    accident = chance.randrange(6)
    if accident == 0:
        del inside[key]
    elif accident == 1 and isinstance(inside, list):
        inside.insert(chance.randrange(len(inside) + 1), inside[key])
    elif accident == 1:
        inside[chance.choice(("", "kind", "x", "value", f"{key}_"))] = inside.pop(key)
    elif accident == 2:
        inside[key] = [inside[key]]
    elif accident == 3:
        inside[key], number = f"{(mark := 'THE-PLACE')}", chance.choice(NUMBERS)
        return json.dumps(whole).replace(f'"{mark}"', number).encode()
    else:
        inside[key] = chance.choice(SCALARS)
    return json.dumps(whole).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from _places(part)

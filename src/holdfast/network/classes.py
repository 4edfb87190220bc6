"""Names of classes, and the numbers of the outputs that they mean."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import BadInput

MANY = 12  # names that are told one by one


def numbers_of(given: Sequence[Any], classes: Sequence[Any], where: Callable[[int], str]) -> list[int]:
    """The place of each among the classes; BadInput tells the first that is none of them. where: how people find a label by its place."""
    number = {name: k for k, name in enumerate(classes)}
    strange = next((place for place, name in enumerate(given) if name not in number), None)
    if strange is not None:
        near = difflib.get_close_matches(str(given[strange]), [str(name) for name in classes], 1, 0.75)
        hint = f" Is {near[0]!r} meant?" if near else ""
        raise BadInput(
            f"{where(strange)}: the label {str(given[strange])[:60]!r} is none of the classes {list_names(classes)}.{hint}"
        )
    return [number[name] for name in given]


def list_names(names: Iterable[Any]) -> str:
    """The first of them, and how many more there are."""
    told = list(names)
    more = f" and {len(told) - MANY} more" if len(told) > MANY else ""
    return ", ".join(str(name)[:40] for name in told[:MANY]) + more

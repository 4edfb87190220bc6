"""Names of classes, and the outputs that they name."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from holdfast.errors import BadInput

# Largest number of names in an error message (chosen by hand).
MANY = 12
# Longest name in an error message, in characters (chosen by hand).
LONGEST_NAME = 40
LONGEST_LABEL = 60
# Smallest similarity, as of difflib, at which a class is suggested for a misspelt label (chosen by hand).
SIMILARITY = 0.75


def class_names_of(module: nn.Module) -> list[str] | None:
    """Return the class names of a Hugging Face model (config.id2label), or None where there are none or only
    placeholders.
    """
    names = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not names:
        return None
    try:
        ordered = {int(number): str(label) for number, label in names.items()}
    except (TypeError, ValueError):
        return None
    found = [ordered.get(number) for number in range(len(ordered))]
    known = [label for label in found if label is not None]
    placeholders = all(label == f"LABEL_{number}" for number, label in enumerate(known))
    usable = len(known) == len(ordered) and len(set(known)) == len(known) and not placeholders
    return known if usable else None


def numbers_of(given: Sequence[Any], classes: Sequence[Any], where: Callable[[int], str]) -> list[int]:
    """The class number of each label; BadInput names the first label that is no class.

    where: describes the position of a label in error messages, given its index.
    """
    number = {name: k for k, name in enumerate(classes)}
    unknown = next((i for i, name in enumerate(given) if name not in number), None)
    if unknown is not None:
        label = str(given[unknown])
        similar = difflib.get_close_matches(label, [str(name) for name in classes], 1, SIMILARITY)
        hint = f" Is {similar[0]!r} meant?" if similar else ""
        raise BadInput(
            f"{where(unknown)}: the label {label[:LONGEST_LABEL]!r} is none of the classes "
            f"{list_names(classes)}.{hint}"
        )
    return [number[name] for name in given]


def class_numbers(y: Any, labels: Sequence[Any] | None, classes: Sequence[str] | None, model: str) -> Any:
    """Class labels of the user's data as output numbers; values that are output numbers already are returned
    unchanged.

    Args:
        labels: the classes as they appear in the data, where they are known.
        classes: the names of the outputs.
        model: the model's name, for messages.
    """
    if isinstance(y, Tensor):
        return y
    given = y.tolist() if hasattr(y, "tolist") else list(y)
    names = labels or (classes if any(isinstance(label, str) for label in given) else None)
    if names is None or names == tuple(range(len(names))):
        return y if not hasattr(y, "to_numpy") else given
    return numbers_of(given, names, lambda place: f"{model}, label {place}")


def list_names(names: Iterable[Any]) -> str:
    """The first names as text, and the number of the others."""
    every = list(names)
    more = f" and {len(every) - MANY} more" if len(every) > MANY else ""
    return ", ".join(str(name)[:LONGEST_NAME] for name in every[:MANY]) + more

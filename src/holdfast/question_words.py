"""Values of a question as JSON and as text: different values have different texts."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from holdfast.formatting import exact_text, shorten

Json = Any  # what JSON can hold

LONG = 90  # Characters of a value; a longer one is cut and followed by its hash.
HASH = 8  # Hexadecimal digits of a hash in a sentence; pages and files hold all of them.
SHA256 = re.compile("[0-9a-f]{64}")
BARE = re.compile(r"[\w.,:%+\-/*]+")  # Values that need no quotation marks.


def plain(value: Json) -> Json:
    """Return a value as JSON can hold it: tuples as lists, infinity and NaN as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def count_phrase(values: Json, what: str) -> str:
    """Return a short list as it is, a long one as its length and hash."""
    if len(text := full_text(values)) <= LONG:
        return value_text(values)
    many = len(values) if isinstance(values, list | tuple | Mapping) else len(text)
    return f"{many} {what}s, {digest(values)}"


def value_text(value: Json) -> str:
    """Return different texts for different values.

    Numbers have all digits. Texts of more than a word are quoted. Long texts, and texts with control
    characters, are followed by their hash.
    """
    if value is True or value is False:
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return exact_text(value) if isinstance(value, float) else str(value)
    text = full_text(value)
    shown = shorten(text, LONG)
    if shown != text:
        return f"{json.dumps(shown, ensure_ascii=False)} {digest(value)}"
    return (
        text if not isinstance(value, str) or BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    )


def full_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, sort_keys=True)


def digest(value: Json) -> str:
    return f"hash {short_hash(hash_of(value))}"


def hash_of(value: Json) -> str:
    from holdfast.network.fingerprint import of_text  # Here because it imports torch.

    return of_text(json.dumps(plain(value), sort_keys=True))


def short_hash(value: str) -> str:
    return value[:HASH] if SHA256.fullmatch(value) else value_text(value)

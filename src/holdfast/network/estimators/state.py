"""The hash of all that a fitted estimator holds: two forests never share one, and the same fit in another process has the same."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.network.fingerprint import of_callable

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def of_estimator(estimator: Any) -> str:
    digest = hashlib.sha256()
    for part in _parts(estimator, ()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    """What it holds, piece by piece. Nothing of it is where it lies in memory; of numbers in records no padding."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    yield kind.encode()
    if isinstance(value, PLAIN):
        yield value if isinstance(value, bytes) else repr(value).encode()
    elif isinstance(value, np.ndarray | np.generic):
        yield from _array(np.asarray(value), above)
    elif id(value) in above:
        yield b"again"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(key, above)
            yield from _parts(part, (*above, id(value)))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part, (*above, id(value)))
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif hasattr(value, "save_raw"):  # of XGBoost
        yield bytes(value.save_raw("json"))
    elif hasattr(value, "model_to_string"):  # of LightGBM
        yield value.model_to_string().encode()
    elif callable(value) and hasattr(value, "__code__"):
        yield of_callable(value).encode()
    else:
        yield from _object(value, (*above, id(value)))


def _array(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    yield f"{value.dtype.str} {value.shape}".encode()
    if value.dtype.names is not None:
        for name in value.dtype.names:
            yield name.encode()
            yield from _array(value[name], above)
    elif value.dtype == object:
        for part in value.ravel():
            yield from _parts(part, above)
    else:
        yield np.ascontiguousarray(value).tobytes()


def _object(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    """What would be written to make it again."""
    made = value.__reduce_ex__(2)
    if isinstance(made, str):
        yield made.encode()
        return
    function, given, state, *rest = (*made, None, None, None)[:5]
    yield f"{function.__module__}.{function.__qualname__}".encode()
    yield from _parts(given, above)
    yield from _parts(state, above)
    for part in rest:
        yield from _parts(None if part is None else list(part), above)

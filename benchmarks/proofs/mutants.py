"""Every kind of number of a proof, changed so that what it claims is false."""

import json
from typing import Any

import numpy as np


def mutants(
    header: dict[str, Any], arrays: dict[str, Any], shown: float, draw: np.random.Generator
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """shown: the radius of a known witness. -> headers and arrays of files that claim something false, of something else, or of nothing."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def changed(arrays_too: dict[str, Any] | None = None, **more: Any) -> None:
        found.append(({**json.loads(json.dumps(header)), **more}, {**arrays, **(arrays_too or {})}))

    for factor in (1.0, 1.01, 2.0, 100.0):
        changed(region={**header["region"], "radius": shown * factor})
    for other in range(3):
        if other != header["property"]["class"]:
            changed(property={"class": other})
    for strange in (-1, 99, "x", None, 1e9):
        changed(property={"class": strange})
    for strange in (-1.0, "nan", "inf", None, 1e300, True, []):
        changed(region={**header["region"], "radius": strange})
    for strange in ("0", "3", "max", "box", None, 2):
        changed(region={**header["region"], "norm": strange})
    for digest in ("0" * 64, "", None, 7):
        changed(model={"sha256": digest})
    for version in (0, 2, "1", None):
        changed(version=version)
    for above in (50.0, "nan", None, "inf"):
        changed(above=above)
    for kind in ("witness", "", None, 3):
        changed(kind=kind)
    centre = arrays["region/centre"]
    for _ in range(6):
        changed(
            {"region/centre": centre + draw.normal(0, 3, centre.shape).astype(centre.dtype)}, region={**header["region"], "radius": 3.5}
        )
    changed({"region/centre": np.full_like(centre, np.nan)})
    changed({"region/centre": centre[:-1]})
    changed({"region/lower": np.array([np.nan])})
    changed({"region/lower": np.array([5.0])})
    changed({"region/shares": np.array([-1.0])})
    changed({"region/shares": np.array([np.inf])})
    changed({"region/shares": np.ones(centre.size + 1)})
    for name in header:
        if name not in ("goal", "input", "question"):
            found.append(({key: value for key, value in header.items() if key != name}, arrays))
    given = {name: array for name, array in arrays.items() if name.startswith("parabolas/")}
    above = {**header["region"], "radius": shown}
    for size in (0.0, 1e-3, 0.1, 3.0, 1e50) if given else ():  # any parabolas are sound: none proves what a witness excludes
        changed({name: array + size * draw.normal(0, 1, array.shape) for name, array in given.items()}, region=above)
        changed({name: size * draw.normal(0, 1, array.shape) for name, array in given.items()}, region=above)
    for name, array in given.items():
        changed({name: -array}, region=above)
        for wrong in (array[..., :-1], array[:, :1], array[0], np.concatenate([array, array]), np.full_like(array, np.nan), array * np.inf):
            changed({name: wrong})
    for strange in ("0", "x", "99999", "") if given else ():
        changed({f"parabolas/{strange}": next(iter(given.values()))})
    for name in arrays.keys() - given.keys():  # without a parabola there is a line, and what that proves is true
        found.append((header, {key: value for key, value in arrays.items() if key != name}))
    return found

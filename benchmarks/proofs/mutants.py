"""Mutations of every kind of number in a proof that make its claim false."""

import json
from typing import Any

import numpy as np


def mutants(
    header: dict[str, Any], arrays: dict[str, Any], shown: float, draw: np.random.Generator
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Headers and arrays of certificates with a false claim, a claim about something else, or none.

    shown: the distance of a known counterexample.
    """
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
            {"region/centre": centre + draw.normal(0, 3, centre.shape).astype(centre.dtype)},
            region={**header["region"], "radius": 3.5},
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
    for size in (
        (0.0, 1e-3, 0.1, 3.0, 1e50) if given else ()
    ):  # Any parabola is sound, so none proves a radius beyond a counterexample.
        changed(
            {name: array + size * draw.normal(0, 1, array.shape) for name, array in given.items()},
            region=above,
        )
        changed({name: size * draw.normal(0, 1, array.shape) for name, array in given.items()}, region=above)
    for name, array in given.items():
        changed({name: -array}, region=above)
        for wrong in (
            array[..., :-1],
            array[:, :1],
            array[0],
            np.concatenate([array, array]),
            np.full_like(array, np.nan),
            array * np.inf,
        ):
            changed({name: wrong})
    for strange in ("0", "x", "99999", "") if given else ():
        changed({f"parabolas/{strange}": next(iter(given.values()))})
    for name in (
        arrays.keys() - given.keys()
    ):  # Without a parabola there is a linear bound, which proves only true claims.
        found.append((header, {key: value for key, value in arrays.items() if key != name}))
    return found


def broken_signs(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Arrays of a branch-and-bound proof on ReLU signs, changed so that they prove nothing.

    The trees do not cover the region, multipliers are invalid, or numbers belong to other leaves.
    """
    tree, multipliers, groups = (arrays[name] for name in ("signs", "signs/multipliers", "signs/groups"))
    leaf = tree[tree[:, 0] == -1][:1]
    first, [place, *_] = (
        int(np.flatnonzero(tree[:, 0] == -1)[0]),
        [name for name, array in arrays.items() if name.startswith("leaves/") and array.size],
    )
    slopes, at = arrays[place], f"at/{place.split('/')[1]}"

    def at_first(array: Any, number: float) -> Any:
        changed = array.copy()
        changed[(0,) * array.ndim] = number
        return changed

    def cut(step: int, element: int) -> Any:
        changed = tree.copy()
        changed[0] = step, element
        return changed

    changes: list[dict[str, Any]] = [
        *(
            {"signs": other}
            for other in (
                tree[:-1],
                np.concatenate([tree, leaf]),
                np.delete(tree, first, 0),
                leaf,
                tree[:0],
                tree[:, :1],
            )
        ),
        *(
            {"signs": other}
            for other in (cut(-2, 0), cut(10**4, 0), cut(int(tree[0, 0]), -1), cut(int(tree[0, 0]), 10**4))
        ),
        {"signs": tree.astype(np.float32)},
        {"signs": tree.ravel()},
        *(
            {"signs/multipliers": at_first(multipliers, number)}
            for number in (-1.0, -1e-30, np.nan, np.inf, -np.inf)
        ),
        *(
            {"signs/multipliers": other}
            for other in (multipliers[:-1], np.tile(multipliers, (2, 1)), multipliers[:, :0])
        ),
        *(
            {"signs/groups": other}
            for other in (groups[:-1], np.concatenate([groups, groups[:1]]), groups + 10**3, groups - 10**3)
        ),
        *(
            {place: other}
            for other in (
                slopes[:-1],
                slopes[:, :0],
                slopes[..., :-1],
                slopes[0],
                np.concatenate([slopes] * 2),
            )
        ),
        {place: np.full(slopes.shape, np.nan)},
        {"leaves/0": slopes},
        {"leaves/10000": slopes},
        {"leaves/x": slopes},
        *(
            {at: other}
            for other in (arrays[at] + 10**4, -1 - arrays[at], arrays[at].astype(np.float32), arrays[at][:-1])
        ),
    ]
    for name in (name for name, array in arrays.items() if name.startswith("ends/") and array.size):
        changes += [{name: arrays[name][:-1]}, {name: np.full(arrays[name].shape, np.nan)}]
    found = [{**arrays, **change} for change in changes]
    for name in ("signs/multipliers", "signs/groups", "signs/anew"):
        found.append({key: value for key, value in arrays.items() if key != name})
    return found


def other_signs(arrays: dict[str, Any], draw: np.random.Generator) -> list[dict[str, Any]]:
    """Well-formed arrays of a branch-and-bound proof with other numbers: they may prove the claim, but never
    a false one.
    """
    tree, multipliers = arrays["signs"], arrays["signs/multipliers"]
    places = [name for name in arrays if name.startswith("leaves/")]
    turned = {
        **arrays,
        "signs/multipliers": multipliers[::-1].copy(),
        **{name: arrays[name][::-1].copy() for name in places},
    }
    elsewhere = tree.copy()
    elsewhere[tree[:, 0] >= 0, 1] = 0
    earlier = tree.copy()
    earlier[tree[:, 0] >= 0] = 0
    found = [
        turned,
        {**arrays, "signs": elsewhere},
        {**arrays, "signs": earlier},
        {**arrays, "signs/anew": 1 - arrays["signs/anew"]},
    ]
    for size in (0.0, 0.5, 2.0, 1e3, 1e20):
        found.append({**arrays, "signs/multipliers": multipliers * np.float32(size)})
        found.append({**arrays, "signs/multipliers": draw.exponential(size, multipliers.shape)})
    for _ in range(3):
        found.append(
            {
                **arrays,
                **{
                    n: draw.integers(0, 256, arrays[n].shape, dtype=np.uint8)
                    for n in places
                    if arrays[n].dtype == np.uint8
                },
            }
        )
        found.append({**arrays, **{name: draw.normal(0.5, 1.0, arrays[name].shape) for name in places}})
    return found

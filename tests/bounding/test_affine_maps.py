"""Affine maps compute the same whichever way they are kept, forwards and back, and nobody else knows how they are."""

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from bounds_zoo import HERE, ZOO, network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.bounding.graph import affine
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph.graph import Affine, Graph, Node, build

SOURCE = Path(affine.__file__).resolve().parents[2]
Transform = Callable[..., Tensor]
Made = tuple[Affine, Transform, Transform]


def recorded(name: str, keep: int, monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    """Every map that is made for a network, with the function it was made of and the size of that."""
    found: list[Made] = []

    def affine_of(
        self: Graph, name: str, inputs: Sequence[Node], function: Transform, magnitude: Transform, **more: Any
    ) -> Node:
        node = plain(self, name, inputs, function, magnitude, **more)
        assert isinstance(node, Affine)
        found.append((node, function, magnitude))
        return node

    def copies_of(self: Graph, name: str, inputs: Sequence[Node], function: Transform) -> Node:
        node = moved(self, name, inputs, function)
        if node.inputs == tuple(inputs):  # else it is taken from further back
            assert isinstance(node, Affine)
            found.append((node, function, function))
        return node

    plain, moved = Graph.affine, Graph.add_move
    monkeypatch.setattr(Graph, "affine", affine_of)
    monkeypatch.setattr(Graph, "add_move", copies_of)
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", keep)
    build(network(name)[1], torch.zeros(1, *ZOO[name].shape))
    return found


def check(node: Affine, function: Transform, magnitude: Transform, seed: int = 0) -> None:
    """Forwards against the function, back against its vjp, sizes against the absolute values of its matrix."""
    g = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    def same(a: Tensor, b: Tensor) -> None:
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)

    x = [some(2, 3, s.size) for s in node.inputs]
    whole = torch.func.vmap(torch.func.vmap(function))
    shaped = [v.reshape(2, 3, *s.shape) for v, s in zip(x, node.inputs, strict=True)]
    wanted = whole(*shaped).flatten(2)
    same(node.forward(x), wanted)
    zero = [torch.zeros(s.shape, dtype=torch.float64) for s in node.inputs]
    b, pull = torch.func.vjp(function, *zero)
    assert b.shape == node.shape
    same(node.shift if node.shift is not None else torch.zeros(node.size, dtype=torch.float64), b.flatten())
    same(node.forward(x, shift=False), wanted - b.flatten())
    for axis in (0, 1):
        turned = [v.movedim(-1, axis) for v in x]
        same(node.forward(turned, axis), wanted.movedim(-1, axis))
        same(
            node.forward_absolute([v.abs() for v in turned], axis),
            node.forward_absolute([v.abs() for v in x]).movedim(-1, axis),
        )
    same(sum((node.part(k, v) for k, v in enumerate(x)), torch.zeros(())), wanted - b.flatten())
    rows = some(2, 3, node.size)
    pulled = torch.func.vmap(torch.func.vmap(pull))(rows.reshape(2, 3, *node.shape))
    for k, (mine, theirs) in enumerate(zip(node.back(rows), pulled, strict=True)):
        same(mine, theirs.flatten(2))
        same(node.back(rows, [k])[0], mine)
    # rows . (J x) = (rows J) . x
    same(
        (rows * node.forward(x, shift=False)).sum(-1),
        sum((p * v).sum(-1) for p, v in zip(node.back(rows), x, strict=True)),
    )  # type: ignore[arg-type]
    absolute = [
        p.flatten(1).abs()
        for p in torch.func.vmap(pull)(
            torch.eye(node.size, dtype=torch.float64).reshape(node.size, *node.shape)
        )
    ]
    wide = sum(
        (v.abs() @ m.t() for v, m in zip(x, absolute, strict=True)),
        torch.zeros(2, 3, node.size, dtype=torch.float64),
    )
    size = node.forward_absolute([v.abs() for v in x])
    assert (node.forward_absolute([v.abs() for v in x], shift=False) >= wide * (1 - 1e-12)).all()
    assert (size >= wanted.abs() * (1 - 1e-12)).all()
    assert (size - wide >= b.flatten().abs() - 1e-11 * (1 + size)).all()
    same(size, torch.func.vmap(torch.func.vmap(magnitude))(*(v.abs() for v in shaped)).flatten(2))
    for k, (mine, m) in enumerate(zip(node.back(rows.abs(), absolute=True), absolute, strict=True)):
        assert (mine >= rows.abs() @ m - 1e-11 * (1 + mine)).all()
        assert (node.part(k, x[k].abs(), absolute=True) >= x[k].abs() @ m.t() - 1e-11).all()
        if node.size:
            support = torch.arange(0, node.inputs[k].size, 2)
            sparse = torch.zeros_like(x[k]).index_copy(-1, support, x[k][..., support])
            same(node.part(k, sparse, support=support), node.part(k, sparse))
    if len(node.inputs) == 1:
        into = some(2, 3, node.inputs[0].size)
        before = into.clone()
        node.back_into(rows, into)
        same(into, before + node.back(rows)[0])
    chosen = (
        torch.randint(0, max(node.size, 1), (2, 4), generator=g)
        if node.size
        else torch.zeros((2, 0), dtype=torch.int64)
    )
    picked = node.rows(chosen)
    if picked is not None:
        for mine, theirs in zip(
            picked, node.back(torch.eye(node.size, dtype=torch.float64)[chosen]), strict=True
        ):
            same(mine, theirs)
    if node.exact_back:
        unit = torch.arange(node.size).double()
        assert all(set(p.tolist()) <= {0.0, *unit.tolist()} for p in node.back(unit))
    if node.factor is not None:
        same(node.forward(x, shift=False), node.factor * x[0])


@pytest.mark.parametrize("keep", [0, 2**22])
@pytest.mark.parametrize("name", HERE)
def test_every_map_of_the_zoo_is_what_its_function_says(
    name: str, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(name, keep, monkeypatch)
    assert made
    seen = set[tuple[object, ...]]()
    for node, function, magnitude in made:
        kind = type(node), node.shape, tuple(s.shape for s in node.inputs), node.name
        if kind not in seen:  # the steps of a recurrent layer are alike
            seen.add(kind)
            check(node, function, magnitude)


@pytest.mark.parametrize("keep", [0, 2**22])
def test_every_encoding_is_met(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met = {
        type(node).__name__
        for name in ("lstm", "residual", "moves")
        for node, *_ in recorded(name, keep, monkeypatch)
    }
    assert met == ({"_Copy", "_Function"} if keep == 0 else {"_Copy", "_Sum", "_Matrix"})


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes of inputs, and where each element of a map comes from: repeats, gaps and inputs that nobody reads."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return sizes, draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=8))


@settings(max_examples=60, deadline=None)
@given(copies(), st.data())
def test_copies_and_moves_of_them(drawn: tuple[list[int], list[int]], data: st.DataObject) -> None:
    sizes, origin = drawn
    graph = Graph()
    inputs = [graph.add_entry((1, size)) for size in sizes]
    which = torch.tensor(origin)

    def first(*v: Tensor) -> Tensor:
        return torch.cat([a.flatten() for a in v])[which]

    node = graph.add_move("copy", inputs, first)
    assert isinstance(node, Affine)
    check(node, first, first)
    again = torch.tensor(data.draw(st.lists(st.integers(0, len(origin) - 1), min_size=1, max_size=6)))
    outer = affine.make_copy(9, "again", [node], again.shape, again)
    both = outer.after(node)
    assert both is not None
    assert all(source in inputs for source in both.inputs)
    values = {source: torch.randn(source.size, dtype=torch.float64) for source in inputs}
    torch.testing.assert_close(
        both.forward([values[s] for s in both.inputs]),
        outer.forward([node.forward([values[s] for s in inputs])]),
    )


@pytest.mark.parametrize(
    ("inner", "outer"), list(itertools.product(("matrix", "sum", "function"), ("move", "shift", "half")))
)
def test_two_maps_as_one(inner: str, outer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, w = Graph(), torch.randn(5, 4, dtype=torch.float64)
    a, b = (graph.add_entry((1, 4)) for _ in range(2))
    if inner == "function":
        monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)
    if inner == "sum":
        first = graph.affine("sum", [a, b], *(lambda v, z: v + z,) * 2)
    else:
        first = graph.affine(
            "map", [a, b], lambda v, z: v @ w.t() - z.sum(), lambda v, z: v @ w.t().abs() + z.sum()
        )
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 2**22)
    if outer == "move":
        second = graph.add_move("move", [first], lambda v: v.flip(1)[:, :3])
    else:
        factor = 1.0 if outer == "shift" else 0.5
        second = graph.affine("shift", [first], lambda v: factor * v + 2.0, lambda m: factor * m + 2.0)
    assert isinstance(first, Affine)
    assert isinstance(second, Affine)
    both = second.after(first)
    assert (both is not None) == (
        inner == "matrix" and outer != "half"
    )  # else it is not known, or would be rounded
    if both is not None:
        x = [torch.randn(4, dtype=torch.float64) for _ in range(2)]
        assert both.inputs == (a, b)
        assert both.shape == second.shape
        torch.testing.assert_close(both.forward(x), second.forward([first.forward(x)]))
        size = [v.abs() for v in x]
        torch.testing.assert_close(
            both.forward_absolute(size), second.forward_absolute([first.forward_absolute(size)])
        )


# ---------------------------------------------------------------- the secret


def private() -> set[str]:
    """The names of affine.py that begin with an underscore: its classes, their fields and methods, its functions."""
    tree = ast.parse(Path(affine.__file__).read_text())
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    names |= {
        n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def looked_at(path: Path) -> Iterator[str]:
    """Attributes that a module takes of anything but itself, and names that it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("graph.affine"):
            yield from (alias.name for alias in node.names)


def test_nobody_else_knows_how_a_map_is_kept() -> None:
    """Of all that can meet a map: what lies in bounding, or imports it."""
    others = [
        p
        for p in sorted(SOURCE.rglob("*.py"))
        if "holdfast.bounding" in p.read_text() and p != Path(affine.__file__).resolve()
    ]
    assert len(others) > 30
    for path in others:
        found = set(looked_at(path)) & (
            private() | {"matrices", "picks", "joins", "adds", "offset_size", "vjp", "jvp"}
        )
        assert not found, f"{path.name} looks at {found}"


def test_the_test_of_the_secret_can_see() -> None:
    assert {
        "_Copy",
        "_Sum",
        "_Matrix",
        "_Function",
        "_origin",
        "_matrices",
        "_function",
        "_magnitude",
        "_weight",
    } <= private()
    assert {"_origin", "_matrices", "vjp", "jvp"} & set(looked_at(Path(affine.__file__)))

"""Runs to report on: real ones on tiny networks, and synthetic ones written straight into a store."""

import math
from collections.abc import Sequence
from dataclasses import fields
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.question import DataDescription, Means, ModelDescription, Question, Request
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound

MODEL = {"name": "tiny", "source": "torch", "fingerprint": "f00d", "domain": "[0, 1]"}
DATA = {"name": "points", "fingerprint": "beef", "count": 3}
VOID = {"meta", "img", "br", "link", "input", "hr"}


class TinyImages(nn.Module):
    """(batch, 1, 4, 4) -> (batch, 2): bright or dark."""

    def forward(self, x: Tensor) -> Tensor:
        brightness = x.flatten(1).mean(1)
        return torch.stack([0.5 - brightness, brightness - 0.5], 1)


class TinySequence(nn.Module):
    """(batch, time, 2) -> (batch, 2): the sign of a weighted sum, in which late frames weigh more."""

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        total = (x.sum(-1) * weight).sum(1)
        return torch.stack([total, -total], 1)


class TinyWords(nn.Module):
    """(batch, time) token ids -> (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 2)
        self.embedding.weight.data = torch.tensor(
            [[0.1, 0.2], [1.0, 0.5], [0.4, 0.8], [-0.3, 0.9], [0.7, 0.7]]
        )
        self.rest = TinySequence()

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.rest(self.embedding(tokens))
        return answer


def question(**said: Any) -> Question:
    """A question about the tiny network: every word finds the part it belongs to; `model` and `data` replace what is said of them."""
    said = {"command": "radius", "norm": "inf", "tier": "fast", "model": MODEL, "data": DATA, **said}
    model, data = {"domain": MODEL["domain"], **said.pop("model")}, dict(said.pop("data"))
    parts: dict[type, dict[str, Any]] = {
        ModelDescription: model,
        DataDescription: data,
        Request: {},
        Means: {},
        Question: {},
    }
    for name, value in said.items():
        kind = next(kind for kind in parts if name in {f.name for f in fields(kind)})
        parts[kind][name] = tuple(value) if name in ("classes", "vocabulary") and value is not None else value
    made = {kind: kind(**values) for kind, values in parts.items() if kind is not Question}
    return Question(
        model=made[ModelDescription],
        data=made[DataDescription],
        asked=made[Request],
        means=made[Means],
        **parts[Question],
    )


def put(
    store: hf.Store, x: Tensor, labels: Sequence[int], net: hf.Network, tokens: Tensor | None = None
) -> None:
    said = net(x).argmax(-1).tolist()
    ids = [None] * len(x) if tokens is None else tokens.tolist()
    store.put_inputs(list(x), list(labels), said, [""] * len(x), ids)


def proof(value: float) -> Bound:
    assumption = ("real arithmetic",)
    return Bound(
        value,
        Evidence(
            "proved",
            "Certify",
            {"tier": "fast"},
            0,
            "torch.float64",
            assumption,
            traits=hf.certify.Certify.traits,
        ),
    )


def witness(value: float, x: Tensor | None = None) -> Bound:
    return Bound(
        value,
        Evidence(
            "witnessed", "PGD", {"steps": 20}, 0, "torch.float32", witness=x, traits=hf.attacks.PGD.traits
        ),
    )


def estimate(value: float) -> Bound:
    return Bound(value, Evidence("estimated", "CLEVER", {"batches": 10}, 0))


def sampled(value: float, confidence: float = 0.999) -> Bound:
    return Bound(value, Evidence("sampled", "Smoothing", {"sigma": 0.25}, 0, confidence=confidence))


def bracket(lower: float, upper: float, note: str = "") -> Bracket:
    return Bracket(
        trivial_bound(lower) if lower in (0.0, -math.inf) else proof(lower),
        trivial_bound(upper) if math.isinf(upper) else witness(upper),
        note=note,
    )


def record(index: int, lower: float, upper: float, frame: int | None = None, **changes: Any) -> Record:
    """goal, part, status and note; of goals that rise the upper end is proved and the lower one witnessed."""
    status, goal = (
        changes.pop("status", "closed" if lower == upper else "finished"),
        changes.pop("goal", "radius"),
    )
    key = Key(index, frame, changes.pop("part", ""))
    made = (
        bracket(-upper, -lower, **changes).negate()
        if goal in ("largest", "steepness")
        else bracket(lower, upper, **changes)
    )
    return Record(key, made, status, 0.5 + index, 100, goal=goal)


class Document(HTMLParser):
    """Reads a page, insists that every element is closed in its turn, and collects what tests ask about."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []  # of the table of inputs
        self._cells: list[str] | None = None
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        assert len(named) == len(attrs), f"an attribute stands twice in <{tag}>"
        assert not any(name.startswith("on") for name in named), f"a handler in <{tag}>"
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "action")
        ]
        if tag == "tr" and "data-s" in named:
            self._cells = []
            self.rows.append(self._cells)
        if tag in ("td", "th") and self._cells is not None:
            self._cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()
        if tag == "tr":
            self._cells = None

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.text += data
        if self._cells:
            self._cells[-1] += data

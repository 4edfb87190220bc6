"""What is published about the JSON files is true of them, and a file that breaks it is told."""

import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from report_runs import TinyImages, estimate, put, question, record

import holdfast as hf
from holdfast.report import write_report
from holdfast.report.compare import compare
from holdfast.report.compare_table import as_json as comparison_json
from holdfast.report.gate import Rules, gate
from holdfast.report.gate_files import as_json as gate_json
from holdfast.report.pairing import load
from holdfast.result import Answers, Key, Likely

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool, "null": type(None),
}  # fmt: skip
KNOWN = {
    "$schema", "$defs", "$ref", "title", "description", "type", "required", "additionalProperties", "properties", "items", "enum",
    "const", "allOf", "minimum", "maximum", "pattern",
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """The words of JSON Schema that ours use, and an error for any other."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    found: list[str] = []
    if "$ref" in schema:
        found += faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    for part in schema.get("allOf", ()):
        found += faults(value, part, root, at)
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        fits = any(
            isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name != "boolean")
            for name in names
        )
        if not fits:
            return [*found, f"{at}: {value!r} is none of {names}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is not among {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']}")
    if isinstance(value, int | float) and not schema.get("minimum", -math.inf) <= value <= schema.get(
        "maximum", math.inf
    ):
        found.append(f"{at}: {value} is out of range")
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} does not match")
    if isinstance(value, dict):
        inside, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        found += [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, part in value.items():
            if name in inside or isinstance(others, dict):
                found += faults(part, inside.get(name, others), root, f"{at}/{name}")
            else:
                found.append(f"{at}: {name} is not foreseen")
    if isinstance(value, list) and "items" in schema:
        found += [
            fault
            for k, part in enumerate(value)
            for fault in faults(part, schema["items"], root, f"{at}/{k}")
        ]
    return found


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hf.Store]:
    """A real run, an open bracket and an estimate."""
    made = hf.Store.create(tmp_path_factory.mktemp("schemas") / "run", question())
    net, x = (
        hf.Network.from_torch(TinyImages().eval(), domain=(0, 1)),
        torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
    )
    put(made, x, net(x).argmax(-1).tolist(), net)
    hf.radius(net, x[:2], net(x[:2]).argmax(-1), store=made)
    answered = record(2, 0.0, math.inf, status="interrupted")
    made.write(
        [
            replace(
                answered,
                bracket=answered.bracket.with_estimate(estimate(0.3)),
                skipped=("Magic: needs a wand",),
            )
        ]
    )
    likely = Likely(1, -math.inf, math.nan)
    made.put_answers({Key(0): Answers((Likely(0, 2.5, 0.9), likely), (likely,)), Key(2): Answers((likely,))})
    with made:
        yield made


def test_a_run(store: hf.Store, tmp_path: Path) -> None:
    told = json.loads(write_report(store, tmp_path / "run.json").read_text())
    rules = schema("run")
    assert len(told["records"]) == 3
    assert faults(told, rules, rules) == []
    assert json.loads(store.export(tmp_path / "again.json").read_text()) == told


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("records", 0, "lower", "kind"), "estimated"),
        (("records", 0, "upper", "value"), "many"),
        (("records", 2, "estimates", 0, "kind"), "proved"),
        (("records", 1, "status"), "done"),
        (("records", 1, "queries"), -1),
        (("records", 1, "more"), 1),
        (("records", 0, "answers", "before", 0, "share"), "inf"),
        (("records", 0, "answers", "after"), None),
        (("provenance", "torch"), None),
    ],
)
def test_a_broken_run_is_told(store: hf.Store, tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    told = copy.deepcopy(json.loads(write_report(store, tmp_path / "run.json").read_text()))
    part = told
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    rules = schema("run")
    assert faults(told, rules, rules)


def test_a_comparison_and_a_decision(store: hf.Store) -> None:
    rules = schema("comparison")
    told = json.loads(
        json.dumps(comparison_json(compare([load(store, "a"), load(store, "b")])), allow_nan=False)
    )
    assert faults(told, rules, rules) == []
    del told["duels"][0]["wins"]
    assert faults(told, rules, rules) == ["/duels/0: wins is missing"]
    rules = schema("gate")
    for asked, baseline in ((Rules(at=0.1, min_certified=0.5), None), (Rules(), load(store))):
        told = json.loads(json.dumps(gate_json(gate(load(store), asked, baseline)), allow_nan=False))
        assert faults(told, rules, rules) == []

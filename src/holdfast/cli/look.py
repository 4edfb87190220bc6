"""`holdfast inspect`: what was understood of a model, and what can be asked about it."""

from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.attacks import CLEVER, PGD, CarliniWagner, Corners
from holdfast.bounds import stops
from holdfast.certify import Certify
from holdfast.cli.load import load_network
from holdfast.cli.question import ModelQuestion, whole_numbers
from holdfast.errors import BadInput, HoldfastError
from holdfast.method import Method
from holdfast.network import Network
from holdfast.network.trace import layers
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Ball
from holdfast.result import Key

FREE_LENGTH = 7  # frames or words to look at a model that takes any number of them


def look(question: ModelQuestion, console: Console) -> None:
    net = load_network(question)
    x = _example(net, whole_numbers(question.shape, "shape"))
    outputs = net.outputs_for(x)
    facts = Table.grid(padding=(0, 2))
    size = sum(p.numel() for p in net.module.state_dict().values())
    for name, value in (
        ("model", net.name),
        ("read as", net.source),
        ("input", _shape(net.shape or tuple(x.shape[1:])) + (f" (vectors of {len(net.vectors)} words)" if net.vectors is not None else "")),
        ("domain", str(net.domain)),
        ("outputs", str(outputs)),
        ("numbers inside", f"{size:,}"),
        ("arithmetic", str(net.dtype).removeprefix("torch.")),
        ("fingerprint", net.fingerprint[:16]),
    ):
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts)
    for note in net.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if net.differentiable:
        _layers(net, x, console)
    _methods(net, x, outputs, console)


def _layers(net: Network, x: torch.Tensor, console: Console) -> None:
    try:
        program = net.program(x)
    except HoldfastError as error:
        console.print(f"[yellow]no graph:[/] {escape(str(error))}", soft_wrap=True)
        return
    blocked = stops(program)
    table = Table("layer", "operator", "output", "proof", title="layers", title_justify="left")
    for layer in layers(program):
        if "getitem" not in layer.operator:
            verdict = "[red]stops here[/]" if layer.operator in blocked else "[green]yes[/]"
            table.add_row(escape(layer.name), layer.operator, _shape(layer.shape[1:]), verdict)
    console.print(table)


def _methods(net: Network, x: torch.Tensor, outputs: int, console: Console) -> None:
    centre = x[:1]
    region = Ball(centre, torch.zeros(1, dtype=torch.float64), torch.inf, net.domain)
    problem = Problem(net, region, Linear.of([1.0] + [0.0] * (outputs - 1)), "radius", (Key(0),))
    table = Table("method", "finds", "works here", title="methods", title_justify="left")
    offered: list[tuple[Method[Any], str]] = [
        (Certify(), "proved lower ends"),
        (PGD(), "witnesses"),
        (CarliniWagner(), "witnesses"),
        (Corners(), "witnesses, any black box"),
        (CLEVER(), "estimates"),
    ]
    for method, finds in offered:
        reason = method.obstacle(problem)
        table.add_row(method.name, finds, "[green]yes[/]" if reason is None else f"[red]no:[/] {escape(reason)}")
    console.print(table)


def _example(net: Network, shape: list[int] | None) -> torch.Tensor:
    """Two inputs somewhere in the domain."""
    known = shape if shape is not None and net.vectors is None else net.shape
    if known is None:
        raise BadInput(f"{net.name} does not say what shape its inputs have; pass --shape, as in --shape 1,28,28.")
    sizes = [FREE_LENGTH if d is None else d for d in known]
    x = torch.rand((2, *sizes), generator=torch.Generator().manual_seed(0), dtype=net.dtype).to(net.device)
    if net.domain.bounded:
        lower, upper = net.domain.lower.to(x), net.domain.upper.to(x)
        x = net.domain.clamp(lower + x * (upper - lower))
    return net.domain.clamp(x)


def _shape(shape: "tuple[int | None, ...]") -> str:
    return "x".join("any" if d is None else str(d) for d in shape) or "one number"

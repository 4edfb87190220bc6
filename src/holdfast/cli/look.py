"""`holdfast inspect`: what was understood of a model, and what can be asked about it."""

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.bounding import stops
from holdfast.certify import Enumerate, Smoothing
from holdfast.cli.model import load_network
from holdfast.cli.question import ModelQuestion, sizes
from holdfast.cli.run import METHODS
from holdfast.errors import BadInput, HoldfastError
from holdfast.hamming import Branch, Greedy, Grid
from holdfast.network import Network
from holdfast.network.trace import layers
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Ball, Region, Sparse
from holdfast.result import Key

FINDS = {
    "certify": "proved lower ends",
    "tighten": "larger proved lower ends",
    "split": "still larger ones",
    "enumerate": "exact counts of replaced words",
    "greedy": "witnesses with few changed units or words",
    "branch": "proved counts of changed units",
    "grid": "DeepTRE's estimates and witnesses",
    "pgd": "witnesses",
    "carlini": "witnesses",
    "corners": "witnesses, also in a black box",
    "mesh": "witnesses by mesh search, also in a black box",
    "clever": "estimates",
    "smoothing": "sampled radii of the smoothed classifier",
}
FREE_LENGTH = 7  # frames or words to look at a model that takes any number of them


def look(question: ModelQuestion, console: Console) -> None:
    net = load_network(question)
    x = _example(net, sizes(question.shape))
    outputs = net.outputs_for(x)
    facts = Table.grid(padding=(0, 2))
    weights = sum(p.numel() for p in net.module.state_dict().values())
    words = "" if net.vectors is None else f"; words as vectors of a table of {len(net.vectors)}"
    for name, value in (
        ("model", net.name),
        ("read as", net.source),
        ("input", _shape(net.shape or tuple(x.shape[1:]), "any") + words),
        ("domain", str(net.domain)),
        ("outputs", str(outputs)),
        ("weights", f"{weights:,}" if net.differentiable else "not visible"),
        ("arithmetic", str(net.dtype).removeprefix("torch.")),
        ("fingerprint", net.fingerprint[:16]),
    ):
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts, highlight=False)
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
            table.add_row(escape(layer.name), layer.operator, _shape(layer.shape, "batch"), verdict)
    console.print(table)


def _methods(net: Network, x: torch.Tensor, outputs: int, console: Console) -> None:
    table = Table("method", "finds", "works here", title="methods", title_justify="left")
    zero = torch.zeros(1, dtype=torch.float64)
    ball = _problem(net, Ball(x[:1], zero, torch.inf, net.domain), outputs)
    counts = _problem(net, Sparse(x[:1], zero, net.domain), outputs) if net.domain.bounded else None
    for name, method in METHODS.items():
        asked = ""
        if method is Enumerate:
            reason, asked = None if net.vectors is not None else "needs a model that reads tokens", ", with --substitutes"
        elif method in (Greedy, Branch, Grid):
            reason, asked = "norm 0 needs a bounded domain (--domain)" if counts is None else method().obstacle(counts), ", with --norm 0"
        elif method is Smoothing:
            reason, asked = None, ", with --norm 2"
        else:
            reason = method().obstacle(ball)
        table.add_row(name, FINDS[name], f"[green]yes[/]{asked}" if reason is None else f"[red]no:[/] {escape(reason)}")
    console.print(table)


def _problem(net: Network, region: Region, outputs: int) -> Problem:
    return Problem(net, region, Linear.of([1.0] + [0.0] * (outputs - 1)), "radius", (Key(0),))


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


def _shape(shape: "tuple[int | None, ...]", free: str) -> str:
    return " x ".join(free if d is None else str(d) for d in shape) or "one number"

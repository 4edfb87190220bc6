"""`holdfast inspect`: what was read of a model, which methods apply, and what a proof costs."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast import time_limit
from holdfast.api import methods  # noqa: F401  Importing registers all methods.
from holdfast.api.bounders import bounders
from holdfast.bounding.graph.fusion import single_input_network
from holdfast.bounding.graph.graph import unsupported_nodes
from holdfast.certify.cost import MEASUREMENT_SECONDS, USUAL_PASSES, Cost, costs
from holdfast.cli.views.output import line
from holdfast.commands.options import ModelOptions
from holdfast.commands.parse import sizes
from holdfast.commands.reading.model import load_network
from holdfast.errors import BadInput, HoldfastError
from holdfast.foreign_text import printable
from holdfast.memory_budget import format_bytes
from holdfast.method import Method, known_methods
from holdfast.network import Network
from holdfast.network.trace import layers
from holdfast.problem import Goal, Problem
from holdfast.property import Linear
from holdfast.region import Ball, Box, Region, Sparse, Words

NOT_KNOWN = "not determined in time"
FREE_LENGTH = 7  # Frames or words of the example for a model that takes any number of them (a choice).
COST_SHARE = 0.5  # Share of the remaining --seconds for measuring the cost of a proof; methods get the rest.


def inspect_model(question: ModelOptions, console: Console, seconds: float = math.inf) -> None:
    """Print what can be determined in the given seconds, and what cannot."""
    with time_limit.within(time.monotonic() + seconds):
        _look(question, console, seconds)


def _look(question: ModelOptions, console: Console, seconds: float) -> None:
    read = time_limit.interrupt_late(lambda: _read_network(question), None)
    if read is None:
        raise BadInput(
            f"{question.model} could not be read and evaluated at one input within {seconds:g} s: give more "
            "--seconds."
        )
    net, x, outputs = read
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
        ("fingerprint", net.fingerprint[:16] or "none: not hashed"),
    ):
        facts.add_row(Text(name, "bold"), printable(value))
    console.print(facts, highlight=False)
    for note in net.notes:
        line(console, "note", note, warns=True)
    late = list[str]()

    def run_section(what: str, section: Callable[[], bool]) -> bool:
        """Run a section of the report; returns its result, False if it ran out of time, which is noted."""
        nothing: bool | None = None
        found = nothing if time_limit.has_expired() else time_limit.interrupt_late(section, nothing, 0.0)
        if found is None:
            late.append(what)
        return bool(found)

    if net.differentiable:
        run_section("its layers, and what blocks a proof", lambda: _layers(net, x, console))
        if run_section("how proofs are made", lambda: _bounders(net, x, console)):
            run_section("the cost of a proof", lambda: _costs(net, x, outputs, console))
    _methods(net, x, outputs, console)
    if late:
        told = f"not determined within {seconds:g} s: {'; '.join(late)}. Give more --seconds."
        line(console, "limit", told, warns=True)


def _read_network(question: ModelOptions) -> tuple[Network, torch.Tensor, int]:
    """The network, two example inputs, and its number of outputs."""
    net = load_network(question)
    x = _example(net, sizes(question.shape))
    return net, x, net.outputs_for(x)


def _bounders(net: Network, x: torch.Tensor, console: Console) -> bool:
    """Print how proofs are made; returns whether anything can be proved."""
    table = Table("question", "bounds", "split", title="how proofs are made", title_justify="left")
    for choice in bounders(net, x):
        table.add_row(choice.question, choice.bounds, choice.cut)
    if table.rows:
        console.print(table)
    return bool(table.rows)


def _costs(net: Network, x: torch.Tensor, outputs: int, console: Console) -> bool:
    """Print the time and memory of one radius here: L∞ norm, a random input, against the runner-up.

    Tier fast is run to its end if the time allows; other times are extrapolated from single steps.
    """
    said = net(x[:1])[0].double()
    row = torch.zeros(outputs, dtype=torch.float64, device=said.device)
    best = said.argsort(descending=True)
    row[best[0]] = 1.0 if outputs > 1 or said[0] > 0 else -1.0
    if outputs > 1:
        row[best[1]] = -1.0
    ball = Ball(x[:1], torch.zeros(1, dtype=torch.float64), torch.inf, net.domain)
    left = time_limit.deadline() - time.monotonic()
    limit = max(MEASUREMENT_SECONDS, COST_SHARE * left) if math.isfinite(left) else MEASUREMENT_SECONDS
    table = Table(
        "tier",
        "measured",
        "one input takes",
        "memory",
        title="what a radius takes on this machine (L∞ norm, one random input)",
        title_justify="left",
    )
    found = costs(Problem(net, ball, Linear.of(row.tolist()), "radius"), limit)
    for cost in found:
        table.add_row(
            cost.tier, measured_text(cost), seconds_text(cost), f"up to {format_bytes(cost.memory)}"
        )
    table.add_row("split", "", "as long as --seconds allows", "")
    console.print(table)
    line(console, "time", time_statement(found[0]), warns=not found[0].complete)
    return True


# Shorter measurements say nothing: the tier's turn came when the time was over (chosen by hand).
LEAST_MEASURED_SECONDS = 0.05


def measured_text(cost: Cost) -> str:
    """What was run and how long it took."""
    if cost.seconds is None and cost.measured < LEAST_MEASURED_SECONDS:
        return "not measured: no time was left"
    took = f"{_short_seconds(cost.measured)} s"
    if cost.complete:
        return f"a whole search: {took}"
    if cost.tier == "fast":
        return f"{cost.passes} passes: {took}" if cost.passes else f"no pass ended in {took}"
    return f"single steps: {took}" if cost.seconds is not None else f"nothing complete in {took}"


def seconds_text(cost: Cost) -> str:
    """The seconds of a whole search, marked if they are extrapolated."""
    if cost.seconds is None and cost.measured < LEAST_MEASURED_SECONDS:
        return "unknown"
    if cost.seconds is None:
        return f"more than {_short_seconds(cost.measured)} s"
    return f"{'' if cost.complete else 'about '}{_short_seconds(cost.seconds)} s"


def time_statement(cost: Cost) -> str:
    """What the measurement of tier fast says about a run, in one sentence."""
    if cost.complete:
        return (
            "tier fast was measured on one random input; real inputs differ. The other times are "
            "extrapolated from "
            "single steps."
        )
    if cost.seconds is None:
        return (
            f"no pass of linear bounds ended in {_short_seconds(cost.measured)} s, so a proof of one input "
            "takes more; "
            f"usually {USUAL_PASSES} passes are needed. Give more --seconds to measure longer, or use --tier "
            "search."
        )
    return (
        f"the search did not end in {_short_seconds(cost.measured)} s; its time is extrapolated from "
        f"{cost.passes} of "
        f"usually {USUAL_PASSES} passes."
    )


def _short_seconds(seconds: float) -> str:
    return f"{seconds:.1g}" if seconds < 1 else f"{seconds:.0f}"


def _layers(net: Network, x: torch.Tensor, console: Console) -> bool:
    try:
        one = single_input_network(net, x)
        program, refused = one.program(x), unsupported_nodes(one, x)
    except HoldfastError as error:
        line(console, "no graph", str(error), warns=True)
        return True
    table = Table("layer", "operator", "output", "proof", title="layers", title_justify="left")
    for layer in layers(program):
        if "getitem" not in layer.operator or layer.node in refused:
            verdict = Text("stops here", "red") if layer.node in refused else Text("yes", "green")
            table.add_row(printable(layer.name), layer.operator, _shape(layer.shape, "batch"), verdict)
    console.print(table)
    for reason in dict.fromkeys(refused.values()):
        line(console, "no proof", reason, warns=True)
    return True


def _methods(net: Network, x: torch.Tensor, outputs: int, console: Console) -> None:
    table = Table("method", "finds", "works here", title="methods", title_justify="left")
    problems = _problems(net, x, outputs)
    for keyword, kind in known_methods().items():
        reasons = [(method_words, _unfit(kind(), problem)) for method_words, problem in problems]
        asked = next((words for words, reason in reasons if reason is None), None)
        reason = next((text for text in (reason for _, reason in reasons) if text), "")
        if asked is not None:
            works = Text.assemble(("yes", "green"), asked)
        elif any(text == NOT_KNOWN for _, text in reasons):
            works = Text(NOT_KNOWN, "yellow")
        else:
            works = Text.assemble(("no:", "red"), f" {reason}")
        table.add_row(keyword, kind.finds, works)
    console.print(table)


def _unfit(method: Method[Any], problem: Problem) -> str | None:
    """Why the method does not apply to the problem, or that time ran out; None: it applies."""
    not_known: str | None = NOT_KNOWN
    return (
        not_known
        if time_limit.has_expired()
        else time_limit.interrupt_late(lambda: method.unfit(problem), not_known, 0.0)
    )


def _problems(net: Network, x: torch.Tensor, outputs: int) -> list[tuple[str, Problem]]:
    """One problem of every kind, with the option that selects it."""
    zero = torch.zeros(1, dtype=torch.float64)
    found = [("", _problem(net, Ball(x[:1], zero, torch.inf, net.domain), outputs))]
    found.append((", with --norm 2", _problem(net, Ball(x[:1], zero, 2, net.domain), outputs)))
    if net.domain.bounded:
        found.append((", with --norm 0", _problem(net, Sparse(x[:1], zero, net.domain), outputs)))
    if net.vectors is not None:
        words = Words.around(
            torch.zeros((1, x.shape[1]), dtype=torch.int64), [[[0, 1]] * x.shape[1]], net.vectors
        )
        found.append((", with --substitutes", _problem(net, words, outputs)))
    found.append((", in verify and reach", _problem(net, Box.between(x[:1], x[:1]), outputs, "worst")))
    if net.domain.bounded:
        found.append((", in saliency", _problem(net, Sparse(x[:1], zero, net.domain), outputs, "worst")))
    found.append(
        (", in risk", _problem(net, Ball(x[:1], zero + 1e-3, torch.inf, net.domain), outputs, "steepness"))
    )
    return found


def _problem(net: Network, region: Region, outputs: int, goal: Goal = "radius") -> Problem:
    return Problem(net, region, Linear.of([1.0] + [0.0] * (outputs - 1)), goal)


def _example(net: Network, shape: list[int] | None) -> torch.Tensor:
    """Two random inputs of the domain."""
    known = shape if shape is not None and net.vectors is None else net.shape
    if known is None:
        raise BadInput(
            f"{net.name} does not define the shape of its inputs; pass --shape, as in --shape 1,28,28."
        )
    sizes = [FREE_LENGTH if d is None else d for d in known]
    x = torch.rand((2, *sizes), generator=torch.Generator().manual_seed(0), dtype=net.dtype).to(net.device)
    if net.domain.bounded:
        lower, upper = net.domain.lower.to(x), net.domain.upper.to(x)
        x = net.domain.clamp(lower + x * (upper - lower))
    return net.domain.clamp(x)


def _shape(shape: "tuple[int | None, ...]", free: str) -> str:
    return " x ".join(free if d is None else str(d) for d in shape) or "one number"

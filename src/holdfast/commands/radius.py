"""`holdfast radius`: lower and upper bounds of the perturbation radius of each input."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from holdfast.commands.command import Command
from holdfast.commands.options import (
    RESULTS,
    SEARCH,
    Arithmetic,
    Batch,
    Certificates,
    DataOption,
    DataOptions,
    Drift,
    Gap,
    Limit,
    Methods,
    ModelOptions,
    Names,
    Outputs,
    Quantiles,
    Queries,
    Scale,
    Seconds,
    Seed,
    Threshold,
    Tier,
    Unit,
    Within,
    request_option,
)
from holdfast.commands.parse import (
    frames_option,
    norm_option,
    numbers,
    one_of,
    rule_option,
    targets_option,
    unit_option,
    values_option,
)
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.commands.built import Built
    from holdfast.hamming import Grid
    from holdfast.store import Store


MAPS = 0.25  # Share of --seconds reserved for the maps of --saliency; the bounds get the rest (a choice).


@dataclass(frozen=True)
class Radius(DataOptions, Command):
    """Bound how far each input can move before its class changes, or its forecast leaves a band.

    The lower bound is proved: no smaller perturbation changes the class. The upper bound comes with a
    counterexample.
    """

    name: ClassVar[str] = "radius"

    network: ModelOptions
    data: DataOption
    norm: Annotated[str, request_option("norm", command="radius")] = "inf"
    frames: Annotated[str | None, request_option("frames")] = None
    shares: Annotated[str | None, request_option("shares", command="radius")] = None
    drift: Drift = False
    within: Within = None
    threshold: Threshold = None
    outputs: Outputs = None
    quantiles: Quantiles = None
    targets: Annotated[str | None, request_option("targets", command="radius")] = None
    substitutes: Annotated[str | None, request_option("substitutes")] = None
    edits: Annotated[str | None, request_option("edits")] = None
    unit: Unit = None
    free: Annotated[str | None, request_option("free")] = None
    values: Annotated[str | None, request_option("values")] = None
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            rich_help_panel=SEARCH,
            help="With --norm 0. prove: exact counts by branch and bound; set --seconds. grid: the estimates "
            "of DeepTRE "
            "(L0-TRE) over a grid.",
        ),
    ] = "prove"
    scale: Scale = None
    limit: Limit = None
    t: Annotated[
        int | None,
        typer.Option(
            "--t",
            metavar="COUNT",
            min=1,
            help="With --mode grid: the largest sets of units. Default: 2.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    levels: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=2,
            help="With --mode grid: values for each number, evenly spaced over the domain. Default: 2.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="With --mode grid: what the sensitivity of a set measures, the margin to the next class "
            "(default) or the confidence in the class (as in the paper).",
            rich_help_panel=SEARCH,
        ),
    ] = None
    tier: Tier = "fast"
    arithmetic: Arithmetic = "real"
    methods: Methods = None
    seed: Seed = 0
    batch: Batch = None
    saliency: Annotated[
        bool,
        typer.Option(
            "--saliency",
            metavar="",
            rich_help_panel=RESULTS,
            help="Add a saliency map of each input to the report; takes a quarter of --seconds. Not with "
            "--frames.",
        ),
    ] = False
    seconds: Seconds = None
    queries: Queries = None
    gap: Gap = 0.0
    certificates: Certificates = False
    names: Names = None

    def build(self) -> "Built":
        from holdfast.api.edits import read_edits, whole_word_edits
        from holdfast.api.methods import Mode, Tier, default_methods
        from holdfast.api.perturbation import Perturbation
        from holdfast.api.radius import radius_problems
        from holdfast.certify import Arithmetic
        from holdfast.commands.answers import check_saliency
        from holdfast.commands.built import Built, methods_named, question_of
        from holdfast.commands.reading.model_and_data import load_both
        from holdfast.hamming import Grid
        from holdfast.network.fingerprint import of_file
        from holdfast.question import Request
        from holdfast.reading.data import load_mask, load_substitutes, read_substitutes
        from holdfast.solver import Stop

        norm, unit, mode, tier = (
            norm_option(self.norm),
            unit_option(self.unit),
            one_of(self.mode, "mode", Mode),
            one_of(self.tier, "tier", Tier),
        )
        arithmetic = one_of(self.arithmetic, "arithmetic", Arithmetic)
        for_maps = MAPS * self.seconds if self.saliency and self.seconds is not None else 0.0
        stop = Stop(None if self.seconds is None else self.seconds - for_maps, self.queries, self.gap)
        frames, scale = frames_option(self.frames), numbers(self.shares, "shares")
        values = values_option(self.values)
        edits = None if self.edits is None else read_edits(self.edits)
        if self.methods is not None:
            methods_named(self.methods, ())
        rule = rule_option(self.within, self.threshold, self.outputs, self.quantiles)
        grid = self._grid(mode)
        net, data = load_both(
            self.network, self.data, scale=self.scale, limit=self.limit, how=self, labels=rule is None
        )
        if self.saliency:
            check_saliency(self, net, data)
        sets = None
        if self.substitutes is not None:
            listed = read_substitutes(self.substitutes)
            whole = whole_word_edits(net, listed) if edits is None and frames is None else None
            if whole is not None:
                edits = whole
                note = "a word or substitute is several tokens: whole words are replaced, counted as edits"
                data = replace(data, notes=(*data.notes, note))
            else:
                sets = load_substitutes(self.substitutes, net)
        each = data.chosen(sets) if isinstance(sets, list) else sets
        moves = Perturbation(
            norm=norm,
            frames=frames,
            shares=scale,
            drift=self.drift,
            substitutes=each,
            edits=edits,
            unit=unit,
            free=None if self.free is None else load_mask(self.free, data.x, data.places),
            values=values,
        )
        problems = radius_problems(
            net,
            data.x,
            data.y if data.labelled or rule is None else None,
            moves,
            property=rule,
            targets=targets_option(self.targets, data),
            lengths=data.lengths,
        )
        if self.methods is None:
            methods = default_methods(
                net,
                "radius",
                tier,
                what=moves.what,
                mode=mode,
                arithmetic=arithmetic,
            )
            methods = [grid if isinstance(method, Grid) else method for method in methods]
        else:
            methods = methods_named(self.methods, problems)
        words = (
            sorted([word, sorted(many)] for word, many in sets.items()) if isinstance(sets, dict) else sets
        )
        asked = Request.of_command(
            "radius",
            self,
            norm=moves.counted_norm,
            substitutes=words,
            edits=None if edits is None else edits.stored(),
            free=None if self.free is None else of_file(Path(self.free)),
        )
        question = question_of(self, net, data, asked)
        return Built(net, question, problems, methods, stop, data, self.seed, self.batch, afterwards=for_maps)

    def _grid(self, mode: str) -> "Grid":
        """The method of --mode grid with its settings."""
        from holdfast.hamming import Grid
        from holdfast.hamming.grid import Rule as GridRule

        given = {"t": self.t, "levels": self.levels, "rule": self.rule}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if chosen and (mode != "grid" or self.methods is not None):
            raise BadInput(
                f"--{next(iter(chosen))} is a setting of --mode grid: give that, without --methods."
            )
        if self.levels is not None and self.values is not None:
            raise BadInput("--values names the values, and --levels their number: give one of them.")
        if self.rule is not None:
            one_of(self.rule, "rule", GridRule)
        return Grid(**chosen)

    def finish(self, store: "Store", built: "Built") -> None:
        from holdfast.commands.answers import keep_saliency

        super().finish(store, built)
        if self.saliency:
            assert built.data is not None
            keep_saliency(store, self, built.net, built.data)

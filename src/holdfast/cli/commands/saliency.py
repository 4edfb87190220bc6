"""`holdfast saliency`: how far the margin can fall when a single pixel, frame or feature changes."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.measuring import CommandView, register_measurement
from holdfast.commands.saliency import SaliencyCommand
from holdfast.formatting import format_upper

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.commands.built import Built
    from holdfast.store import Store

FILE = "saliency.npz"
SHOWN = 20  # Inputs in the table on the terminal: one screen.


class SaliencyView(CommandView[SaliencyCommand]):
    def write_files(self, command: SaliencyCommand, store: "Store", built: "Built") -> None:
        """Write the maps as one array, and as pictures."""
        import numpy as np

        from holdfast.cli.views.output import write_arrays
        from holdfast.cli.views.pictures import draw_saliency, drawable, ends_of, save
        from holdfast.report.summary import class_name

        assert built.data is not None
        known = [stored for stored in store.inputs() if stored.saliency is not None]
        arrays = {
            "x": [stored.x for stored in known],
            "y": [stored.label for stored in known],
            "saliency": [s.saliency for s in known],
        }
        written = {name: np.array(values) for name, values in arrays.items()}
        maps = written["saliency"]
        written["measured"] = ~np.isnan(maps)
        written["saliency"] = (
            np.where(np.isneginf(maps), np.nan, maps) if maps.size else maps
        )  # Units that may not change become NaN too.
        write_arrays(store.folder, FILE, written)
        for stored in known[: command.pictures]:
            if drawable(stored.x.shape) and stored.saliency is not None:
                name = class_name(built.question, stored.prediction if stored.label is None else stored.label)
                figure = draw_saliency(
                    stored.x, stored.saliency, ends_of(built.net), f"input {stored.index}: {name}"
                )
                save(figure, store.folder / f"saliency-{stored.index:04d}.png")

    def show(self, command: SaliencyCommand, store: "Store", built: "Built", console: "Console") -> None:
        """Print the three units of each input with the largest effect, and the lowest margin found."""
        import numpy as np
        from rich.table import Table

        from holdfast.cli.views.output import line
        from holdfast.report.class_probabilities import not_measured

        inputs, lowest = (
            store.inputs(),
            {r.key.index: r.bracket.upper.value for r in store.records() if r.bracket.upper.known},
        )
        table = Table(
            "input",
            "lowest margin",
            "units with the largest effect: fall of the margin",
            caption_justify="left",
        )
        maps = [stored.saliency for stored in inputs if stored.saliency is not None]
        missing, blank = sum(map(not_measured, maps)), len(inputs) - len(maps)
        caption = f"{len(inputs)} inputs"
        caption += f"; {missing} of {sum(found.size for found in maps)} units not measured" if missing else ""
        caption += f"; nothing measured of {blank} inputs" if blank else ""
        table.caption = caption + ("; 'holdfast resume' measures them" if missing or blank else "")
        for stored in inputs[:SHOWN]:
            found = np.full(1, np.nan) if stored.saliency is None else stored.saliency
            flat = np.nan_to_num(found, nan=-1, neginf=-1).flatten()
            known = found.size - not_measured(found)
            best = [place for place in np.argsort(-flat, kind="stable")[:3] if flat[place] >= 0]
            kept = [axis for axis, size in enumerate(found.shape) if size > 1] or [0]
            places = [[int(np.unravel_index(place, found.shape)[axis]) for axis in kept] for place in best]
            told = ", ".join(
                f"({', '.join(map(str, at))}) {flat[place]:.3g}"
                for at, place in zip(places, best, strict=True)
            )
            table.add_row(
                str(stored.index),
                format_upper(lowest[stored.index]) if stored.index in lowest else "",
                (told or "not measured yet")
                + (f" ({known} of {found.size} units measured)" if 0 < known < found.size else ""),
            )
        console.print(table, highlight=False)
        if (store.folder / FILE).exists():
            drawn = len(list(store.folder.glob("saliency-*.png")))
            line(console, "written", f"{store.folder / FILE}" + (f" and {drawn} pictures" if drawn else ""))


def register(app: typer.Typer) -> None:
    register_measurement(app, SaliencyCommand, "vocabulary", "tokenizer", view=SaliencyView())

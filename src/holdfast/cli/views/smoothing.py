"""The table of a run of `holdfast smoothing`, from its store."""

from rich.table import Table
from rich.text import Text

from holdfast.certify.smoothing import smoothed_of
from holdfast.formatting import format_lower
from holdfast.report.summary import class_name, mean_of
from holdfast.result import Record, Share
from holdfast.store import Store


def table(store: Store, most: int = 40) -> Table:
    question, found, radii, count, sampled = store.question, list[Record](), list[float](), 0, 0
    for record in store.stream_with_artefacts():
        count += 1
        found += [record] if count <= most else []
        said = smoothed_of(record)
        radii += [said.radius.value] if said.prediction is not None else []
        sampled += said.measured
    majority = Share(len(radii), sampled, count)
    told = str(majority) if majority.not_measured else f"{len(radii)} of {count}"
    view = Table(
        "input",
        "label",
        "smoothed class",
        "its share, at least",
        "radius (sampled)",
        "status",
        caption=f"Inputs with a majority: {told}, mean radius {format_lower(mean_of(radii))} in the Euclidean "
        "norm. They are of the "
        f"smoothed classifier (noise of width {question.asked.sigma}), not of the network; confidence "
        f"{question.asked.confidence} each.",
        caption_justify="left",
    )
    inputs = (
        {stored.index: stored for stored in store.stream_inputs(0, found[-1].key.index, light=True)}
        if found
        else {}
    )
    for record in found:
        s, stored = smoothed_of(record), inputs.get(record.key.index)
        if not s.measured:
            chosen, share, radius = "not measured", "–", "–"
        else:
            chosen = "none" if s.prediction is None else class_name(question, s.prediction)
            share, radius = format_lower(s.p_lower), format_lower(s.radius.value)
        label = class_name(question, stored.label) if stored else ""
        view.add_row(str(record.key.index), Text(label), Text(chosen), share, radius, record.status)
    return view

"""A run of `holdfast smoothing` to look at, from the store alone."""

from rich.table import Table

from holdfast.certify.smoothing import smoothed_of
from holdfast.report.summary import at_least, class_name
from holdfast.store import Store


def table(store: Store, most: int = 40) -> Table:
    question, records, inputs = store.question, store.with_aside(), {stored.index: stored for stored in store.inputs()}
    found = [(record, smoothed_of(record)) for record in records]
    sure = [s for _, s in found if s.prediction is not None]
    mean = sum(s.radius.value for s in sure) / max(1, len(sure))
    view = Table(
        "input", "label", "smoothed class", "its share, at least", "radius (sampled)", "status",
        caption=f"{len(sure)} of {len(found)} inputs with a majority, mean radius {at_least(mean)} in the Euclidean norm. They are of the "
        f"smoothed classifier (noise of width {question.asked.sigma}), not of the network; confidence {question.asked.confidence} each.",
        caption_justify="left",
    )  # fmt: skip
    for record, s in found[:most]:
        stored = inputs.get(record.key.index)
        said = "none" if s.prediction is None else class_name(question, s.prediction)
        label = class_name(question, stored.label) if stored else ""
        view.add_row(str(record.key.index), label, said, at_least(s.p_lower), at_least(s.radius.value), record.status)
    return view

"""Most likely classes at inputs and counterexamples, and saliency maps, for the page of a run.

They are computed after the search; their few evaluations of the network are not counted as queries.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import time_limit
from holdfast.batch_solver import BatchWorker
from holdfast.commands.parse import unit_option, values_option
from holdfast.errors import BadInput
from holdfast.execution.worker_pool import GRACE_SECONDS
from holdfast.hamming.saliency import Saliency, saliency_problem
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Band, Labels
from holdfast.property.probability import are_probabilities
from holdfast.reading.data import Data
from holdfast.report.class_probabilities import not_measured
from holdfast.result import Answers, Bracket, Key, Likely, Record, trivial_bound
from holdfast.solver import BatchSettings, Stop, ask
from holdfast.store import SALIENCY, Store

if TYPE_CHECKING:
    from holdfast.commands.radius import Radius

MOST = 3  # Classes saved for each input: what a page shows.


def keep_answers(store: Store, problems: Sequence[Problem], batch: int) -> None:
    """Compute and save the classes of every record that has none, or none for its present counterexample."""
    for problem in problems:
        for some in torch.arange(len(problem)).split(batch):
            asked = [problem.keys[row] for row in some.tolist()]
            there, records = store.answers(asked), store.load_known(asked)
            can = {
                key
                for key, record in records.items()
                if key not in there and record.status != "failed" and record.queries
            }
            rows = [row for row in some.tolist() if problem.keys[row] in can]
            if not rows:
                continue
            if time.monotonic() >= time_limit.deadline() + GRACE_SECONDS:
                return
            net, keys = problem.network, [problem.keys[row] for row in rows]
            found = {key: point for key in keys if (point := records[key].witness) is not None}
            before = _asked_once(net, problem.region.centre[rows])
            after = before.clone()
            if found:
                after[[key in found for key in keys]] = _answers_at(problem, list(found.values()))
            if isinstance(problem.property, Band | Labels) or before.shape[1] == 1:
                shown = _moved_most(before, after)
                told, moved = (_outputs(z, shown) for z in (before, after))
            else:
                told, moved = likeliest(before), likeliest(after)
            said = {key: one for key, one in zip(keys, moved, strict=True) if key in found}
            store.put_answers(
                {key: Answers(one, said.get(key, ())) for key, one in zip(keys, told, strict=True)}
            )


def _asked_once(net: Network, x: Tensor) -> Tensor:
    """The outputs at the inputs, each distinct input evaluated once."""
    distinct, place = x.unique(dim=0, return_inverse=True)
    return net(distinct)[place] if len(distinct) < len(x) else net(x)


def _answers_at(problem: Problem, witnesses: list[Tensor]) -> Tensor:
    """The outputs at counterexamples as they are stored; edited texts have different lengths."""
    if not problem.region.changes_length:
        return problem.network(_points(problem.network, witnesses))
    points = [problem.region.from_data(witness) for witness in witnesses]
    rows = torch.stack([point for point in points if point is not None])
    return problem.answers_to_texts(problem.region.texts_read(rows)).to(problem.network.dtype)


def _points(net: Network, witnesses: list[Tensor]) -> Tensor:
    """Counterexamples of one shape as the network takes them: replaced words are stored as tokens."""
    together = torch.stack(witnesses)
    return together.to(net.device, net.dtype) if together.is_floating_point() else net.embed(together)


def _moved_most(before: Tensor, after: Tensor) -> Tensor:
    """(n, outputs) twice -> (n, k): indices of the outputs that change most, ascending."""
    return (after - before).abs().topk(min(MOST, before.shape[1])).indices.sort(-1).values


def _outputs(outputs: Tensor, which: Tensor) -> list[tuple[Likely, ...]]:
    """(n, outputs), (n, k) -> these outputs of each row; without a share, since outputs are not classes."""
    rows = zip(which.tolist(), outputs.double().gather(1, which).tolist(), strict=True)
    return [tuple(Likely(label, value, math.nan) for label, value in zip(*row, strict=True)) for row in rows]


def likeliest(outputs: Tensor) -> list[tuple[Likely, ...]]:
    """(n, classes) -> the largest outputs of each row, with their shares."""
    wide = outputs.double().cpu()
    shares = torch.where(are_probabilities(wide)[:, None], wide, wide.softmax(-1))
    best = wide.topk(min(MOST, wide.shape[1])).indices
    rows = zip(best.tolist(), wide.gather(1, best).tolist(), shares.gather(1, best).tolist(), strict=True)
    return [tuple(Likely(*one) for one in zip(*row, strict=True)) for row in rows]


def check_saliency(q: "Radius", net: Network, data: Data) -> None:
    """Raise BadInput before the search if no saliency map can be computed."""
    if net.vectors is not None:
        raise BadInput(
            f"--saliency: {net.name} reads words, and maps are for images and tables. Leave it out; --frames "
            "each measures word by word."
        )
    if q.frames is not None or data.lengths is not None:
        raise BadInput(
            "--saliency: maps are for images and tables, not for frames. Leave it out; --frames each "
            "measures frame by frame."
        )
    data.stack_inputs(q.data)
    if not net.domain.bounded and q.values is None:
        raise BadInput(
            "--saliency tries the smallest and largest value of the domain at each position, and here the "
            "domain has no limits. Give --domain, as in --domain 0,1."
        )


def keep_saliency(store: Store, q: "Radius", net: Network, data: Data) -> None:
    """Compute the missing or incomplete maps. A map that ran out of time is coarse; `resume` continues it."""
    missing = torch.tensor(
        [stored.index for stored in store.stream_inputs() if _is_partial(stored.saliency)], dtype=torch.int64
    )
    if len(missing) and not time_limit.has_expired():
        every = saliency_problem(
            net, data.stack_inputs(q.data), data.y, unit=unit_option(q.unit), values=values_option(q.values)
        )
        problem, methods = every.take(missing.to(net.device)), [Saliency()]
        left = (
            None if math.isinf(time_limit.deadline()) else max(0.0, time_limit.deadline() - time.monotonic())
        )
        stop = Stop(seconds=left)
        _, means = BatchWorker([problem], methods, stop, 0, hashed=False).question_hashes(problem.keys[0])
        maps = _Maps(store, means if net.fingerprint else None)
        if ask([problem], methods, stop, BatchSettings(rows=q.batch, hashed=False), store=maps).interrupted:
            raise KeyboardInterrupt


def _is_partial(found: NDArray[Any] | None) -> bool:
    return found is None or not_measured(found) > 0


@dataclass(frozen=True)
class _Maps:
    """A sink that saves only the maps of records, whose question is not that of the run.

    means: the hash of the methods of the stored maps; None if the network cannot be compared.
    """

    store: Store
    means: str | None

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]:
        if self.means is None:
            return {}
        nothing, wanted = Bracket(trivial_bound(-math.inf), trivial_bound(math.inf)), set(keys)
        there = {key: found for key, found in self.store.artefacts(SALIENCY).items() if key in wanted}
        return {
            key: Record(
                key, nothing, "stopped", 0.0, 0, means=self.means, goal="worst", aside={SALIENCY: found}
            )
            for key, found in there.items()
        }

    def write(self, records: Sequence[Record]) -> None:
        self.store.put_artefacts(
            SALIENCY, {r.key: r.aside[SALIENCY].float() for r in records if SALIENCY in r.aside}
        )

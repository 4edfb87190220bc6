"""Actors on a Ray cluster: each builds its worker once, tells what it finds as it finds it, and is replaced when it or its machine is
lost."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.errors import BadInput, MissingExtra
from holdfast.execution.local import FIRST, GRACE, Told, failure_of
from holdfast.execution.task import Answer, Deal, Failure, Task, Worker, said

LOOK = 0.5  # seconds


@dataclass(frozen=True)
class Ray:
    """make     how an actor gets its worker: a function that can be pickled and finds its files wherever it runs.
    address  of the cluster, as ray://host:port; None: the one that this machine belongs to, else one on this machine alone.
    workers  actors at a time; None: one for each core, or card, that the cluster has.
    on_card  each takes a whole graphics card.
    """

    make: Callable[[], Worker]
    address: str | None = None
    workers: int | None = None
    on_card: bool = False
    _found: list[int] = field(default_factory=list)

    @property
    def slots(self) -> int:
        if self.workers is not None:
            return self.workers
        if not self._found:
            ray = self._connected()
            self._found.append(max(1, int(ray.cluster_resources().get("GPU" if self.on_card else "CPU", 0))))
        return self._found[0]

    def run(self, worker: Worker, deal: Deal) -> None:
        crew = _Crew(self, self._connected())
        try:
            while crew.fill(deal):
                crew.listen(deal)
        except KeyboardInterrupt:
            deal.interrupt()
        finally:
            crew.dismiss()

    def _connected(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("--executor ray needs Ray: pip install 'holdfast[ray]'. --executor local works without.") from error
        if not ray.is_initialized():
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "ignore_reinit_error": True}
            try:
                if self.address is None:
                    try:
                        ray.init(address="auto", **quiet)
                    except ConnectionError:
                        ray.init(include_dashboard=False, **quiet)
                else:
                    ray.init(address=self.address, **quiet)
            except Exception as error:
                raise BadInput(f"--executor {self.address or 'ray'}: no Ray cluster answers there ({said(error)}).") from error
        return ray


@dataclass
class _Hand:
    """One actor, the words that are still to come of its task, and since when it is at it."""

    actor: Any
    task: Task | None = None
    words: Any = None
    since: float = 0.0
    ready: bool = False
    answered: bool = False

    def overdue(self, now: float) -> bool:
        assert self.task is not None
        passed, allowed = now - self.since, self.task.seconds
        return self.ready and (passed > allowed + GRACE + allowed / 10 or (not self.answered and passed > max(FIRST, allowed / 5)))


@dataclass
class _Crew:
    of: Ray
    ray: Any
    hands: list[_Hand] = field(default_factory=list)

    def fill(self, deal: Deal) -> bool:
        for hand in self.hands:
            if hand.task is None and (task := deal.next()) is not None:
                self._give(hand, task)
        while len(self.hands) < self.of.slots and (task := deal.next()) is not None:
            kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.of.on_card else 0, max_restarts=0)(_Actor)
            self.hands.append(_Hand(kind.remote(self.of.make)))
            self._give(self.hands[-1], task)
        return any(hand.task is not None for hand in self.hands)

    def listen(self, deal: Deal) -> None:
        busy = [hand for hand in self.hands if hand.task is not None]
        ready, _ = self.ray.wait([hand.words for hand in busy], num_returns=1, timeout=LOOK, fetch_local=False)
        for hand in busy:
            assert hand.task is not None
            if hand.words in ready:
                self._hear(hand, hand.task, deal)
            elif hand.overdue(time.monotonic()):
                late = f"it had not come back after {time.monotonic() - hand.since:.0f} s and was ended"
                self._lose(hand, deal, Failure(late, late=hand.answered))

    def dismiss(self) -> None:
        for hand in self.hands:
            with contextlib.suppress(Exception):
                self.ray.kill(hand.actor)
        self.hands.clear()

    def _give(self, hand: _Hand, task: Task) -> None:
        hand.task, hand.since, hand.answered = task, time.monotonic(), False
        hand.words = hand.actor.answer.options(num_returns="streaming").remote(task)

    def _hear(self, hand: _Hand, task: Task, deal: Deal) -> None:
        try:
            word = self.ray.get(next(hand.words))
        except (StopIteration, self.ray.exceptions.RayError) as error:
            self._lose(hand, deal, Failure(f"its actor was lost ({said(error)})"))
            return
        if isinstance(word, Told):
            if not word.method and not hand.ready:
                hand.ready, hand.since = True, time.monotonic()  # it has built its worker
                return
            hand.answered = True
            deal.heard(task, word.records, word.method)
            return
        hand.task = hand.words = None
        if isinstance(word, Answer):
            deal.ended(task, word)
        else:
            assert isinstance(word, Failure)
            deal.failed(task, word)

    def _lose(self, hand: _Hand, deal: Deal, failure: Failure) -> None:
        self.hands.remove(hand)
        with contextlib.suppress(Exception):
            self.ray.kill(hand.actor)
        assert hand.task is not None
        deal.failed(hand.task, failure)


class _Actor:
    """A worker on some machine. What it tells travels while it works: a thread answers, this one passes the words on."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        torch.set_num_threads(1)
        self._make = make
        self._worker: Worker | None = None

    def answer(self, task: Task) -> Iterator[Told | Answer | Failure]:
        from queue import SimpleQueue
        from threading import Thread

        words: SimpleQueue[Told | Answer | Failure] = SimpleQueue()

        def work() -> None:
            try:
                if self._worker is None:
                    self._worker = self._make()
                    words.put(Told((), ""))
                words.put(self._worker.answer(task, lambda records, method: words.put(Told(tuple(records), method))))
            except Exception as error:
                words.put(failure_of(error))

        thread = Thread(target=work, daemon=True)
        thread.start()
        while True:
            word = words.get()
            yield word
            if not isinstance(word, Told):
                thread.join()
                return

"""Actors on a Ray cluster: each builds its worker once, tells what it finds as it finds it, and is replaced when it or its machine is
lost."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.errors import BadInput, MissingExtra
from holdfast.execution.task import Deal, Failure, Task, TaskResult, Worker, describe_exception, failure_of
from holdfast.execution.worker_pool import LOOK, Crew, Hand, Lost, Ready, Said, Told


@dataclass(frozen=True)
class Ray:
    """make     how an actor gets its worker: a function that can be pickled and finds its files wherever it runs.
    address  of the cluster, as ray://host:port; None: the one that this machine belongs to, else one on this machine alone.
    workers  actors at a time; None: one for each core, or card, that the cluster has.
    on_card  each takes a whole GPU.
    """

    make: Callable[[], Worker]
    address: str | None = None
    workers: int | None = None
    on_card: bool = False

    @property
    def slots(self) -> int:
        if self.workers is not None:
            return self.workers
        return max(1, int(self._connect().cluster_resources().get("GPU" if self.on_card else "CPU", 0)))

    def run(self, worker: Worker, deal: Deal) -> None:
        _Actors(size=self.slots, ray=self._connect(), make=self.make, on_card=self.on_card).work(deal)

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra(
                "--executor ray needs Ray: pip install 'holdfast[ray]'. --executor local works without."
            ) from error
        if not ray.is_initialized():
            quiet: dict[str, Any] = {
                "log_to_driver": False,
                "logging_level": logging.ERROR,
                "ignore_reinit_error": True,
            }
            try:
                if self.address is None:
                    try:
                        ray.init(address="auto", **quiet)
                    except ConnectionError:
                        ray.init(include_dashboard=False, **quiet)
                else:
                    ray.init(address=self.address, **quiet)
            except Exception as error:
                raise BadInput(
                    f"--executor {self.address or 'ray'}: no Ray cluster answers there ({describe_exception(error)})."
                ) from error
        return ray


@dataclass(eq=False, kw_only=True)
class _Remote(Hand):
    ray: Any
    actor: Any
    words: Any = None  # those that are still to come of its task

    def give(self, task: Task) -> None:
        self.words = self.actor.answer.options(num_returns="streaming").remote(task)

    def word(self) -> Said:
        try:
            found: Said = self.ray.get(next(self.words))
        except (StopIteration, self.ray.exceptions.RayError) as error:
            raise Lost(f"its actor was lost ({describe_exception(error)})") from error
        return found

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)


@dataclass(kw_only=True)
class _Actors(Crew[_Remote]):
    ray: Any
    make: Callable[[], Worker]
    on_card: bool

    def hire(self) -> _Remote:
        kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.on_card else 0, max_restarts=0)(_Actor)
        return _Remote(ray=self.ray, actor=kind.remote(self.make))

    def wait_for_messages(self, busy: Sequence[_Remote]) -> list[_Remote]:
        ready, _ = self.ray.wait(
            [hand.words for hand in busy], num_returns=1, timeout=LOOK, fetch_local=False
        )
        return [hand for hand in busy if hand.words in ready]


class _Actor:
    """A worker on some machine. What it tells travels while it works: a thread answers, this one passes the words on."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        torch.set_num_threads(1)
        self._make = make
        self._worker: Worker | None = None

    def answer(self, task: Task) -> Iterator[Said]:
        from queue import SimpleQueue
        from threading import Thread

        words: SimpleQueue[Said] = SimpleQueue()

        def work() -> None:
            try:
                if self._worker is None:
                    self._worker = self._make()
                    words.put(Ready())
                words.put(
                    self._worker.answer(task, lambda records, *told: words.put(Told(tuple(records), *told)))
                )
            except Exception as error:
                words.put(failure_of(error))

        thread = Thread(target=work, daemon=True)
        thread.start()
        while True:
            word = words.get()
            yield word
            if isinstance(word, TaskResult | Failure):
                thread.join()
                return

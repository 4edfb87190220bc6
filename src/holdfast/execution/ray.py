"""The executor with actors on a Ray cluster.

Each actor builds its worker once and reports while it works. It is replaced when it or its machine is lost.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.errors import BadInput, MissingExtra
from holdfast.execution.task import (
    Failure,
    Task,
    TaskQueue,
    TaskResult,
    Worker,
    describe_exception,
    failure_of,
)
from holdfast.execution.worker_pool import (
    POLL_SECONDS,
    Message,
    Ready,
    RemoteWorker,
    Update,
    WorkerLost,
    WorkerPool,
)


@dataclass(frozen=True)
class Ray:
    """Runs tasks in actors of a Ray cluster.

    Attributes:
        make: builds the worker of an actor. It must be picklable, and its files must exist on every machine
            of the cluster.
        address: of the cluster, as ray://host:port; None: the cluster of this machine if there is one, else a
            new one on this machine.
        workers: number of actors; None: one for each CPU core of the cluster, or for each GPU.
        on_card: each actor takes a whole GPU.
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

    def run(self, worker: Worker, deal: TaskQueue) -> None:
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
                    f"--executor {self.address or 'ray'}: no Ray cluster answers there "
                    f"({describe_exception(error)})."
                ) from error
        return ray


@dataclass(eq=False, kw_only=True)
class _Remote(RemoteWorker):
    ray: Any
    actor: Any
    messages: Any = None  # the stream of messages of its task

    def send(self, task: Task) -> None:
        self.messages = self.actor.answer.options(num_returns="streaming").remote(task)

    def receive(self) -> Message:
        try:
            message: Message = self.ray.get(next(self.messages))
        except (StopIteration, self.ray.exceptions.RayError) as error:
            raise WorkerLost(f"its actor was lost ({describe_exception(error)})") from error
        return message

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)


@dataclass(kw_only=True)
class _Actors(WorkerPool[_Remote]):
    ray: Any
    make: Callable[[], Worker]
    on_card: bool

    def start_worker(self) -> _Remote:
        kind = self.ray.remote(num_cpus=1, num_gpus=1 if self.on_card else 0, max_restarts=0)(_Actor)
        return _Remote(ray=self.ray, actor=kind.remote(self.make))

    def wait_for_messages(self, busy: Sequence[_Remote]) -> list[_Remote]:
        ready, _ = self.ray.wait(
            [remote.messages for remote in busy], num_returns=1, timeout=POLL_SECONDS, fetch_local=False
        )
        return [remote for remote in busy if remote.messages in ready]


class _Actor:
    """A worker on a machine of the cluster.

    One thread answers the task, and this one sends its messages meanwhile.
    """

    def __init__(self, make: Callable[[], Worker]) -> None:
        torch.set_num_threads(1)
        self._make = make
        self._worker: Worker | None = None

    def answer(self, task: Task) -> Iterator[Message]:
        from queue import SimpleQueue
        from threading import Thread

        messages: SimpleQueue[Message] = SimpleQueue()

        def work() -> None:
            try:
                if self._worker is None:
                    self._worker = self._make()
                    messages.put(Ready())
                result = self._worker.answer(
                    task, lambda records, *rest: messages.put(Update(tuple(records), *rest))
                )
                messages.put(result)
            except Exception as error:
                messages.put(failure_of(error))

        thread = Thread(target=work, daemon=True)
        thread.start()
        while True:
            message = messages.get()
            yield message
            if isinstance(message, TaskResult | Failure):
                thread.join()
                return

"""Requests that wait at the same time are answered in one batch."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Scores, Steps

# Limit for the requests in a batch, so that the first ones do not wait too long (chosen by hand).
LARGEST_BATCH = 64


@dataclass(frozen=True, eq=False)
class _Waiting:
    sequence: Tensor
    k: Steps
    answer: "asyncio.Future[Scores]"


class RequestBatcher:
    """Collects requests while the worker is busy, and passes all with the same k to it as one batch."""

    def __init__(self, monitor: Monitor, worker: Executor) -> None:
        self.monitor = monitor
        self.worker = worker
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def scores(self, sequence: Any, k: Steps) -> Scores:
        """Return `Monitor.score`. Invalid sequences are rejected before they join a batch."""
        loop = asyncio.get_running_loop()
        mine = _Waiting(self.monitor.read(sequence), k, loop.create_future())
        self._waiting.append(mine)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        return await mine.answer

    async def _work(self) -> None:
        while self._waiting:
            k = self._waiting[0].k
            batch = [waiting for waiting in self._waiting if waiting.k == k][:LARGEST_BATCH]
            self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
            await self._answer(batch, k)

    async def _answer(self, batch: list[_Waiting], k: Steps) -> None:
        """Answer a batch.

        If it fails, each request is answered alone, so that one cannot make others fail.
        """
        run = asyncio.get_running_loop().run_in_executor
        try:
            found = await run(self.worker, self.monitor.score_all, [waiting.sequence for waiting in batch], k)
        except Exception as error:
            if len(batch) > 1:
                for waiting in batch:
                    await self._answer([waiting], k)
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for waiting, scores in zip(batch, found, strict=True):
            if not waiting.answer.done():  # the client may have disconnected
                waiting.answer.set_result(scores)

"""Questions that wait at the same time are answered together: sequences side by side cost little more than one."""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Scores, Steps

MOST = 64  # questions at once; more would make the first ones wait


@dataclass(frozen=True, eq=False)
class _Waiting:
    sequence: Tensor
    k: Steps
    answer: "asyncio.Future[Scores]"


class RequestBatcher:
    """While the worker is busy, questions gather; then all with the same k go to it as one."""

    def __init__(self, monitor: Monitor, worker: Executor) -> None:
        self.monitor = monitor
        self.worker = worker
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def scores(self, sequence: Any, k: Steps) -> Scores:
        """As `Monitor.score`; what cannot be read is refused before it joins others."""
        loop = asyncio.get_running_loop()
        mine = _Waiting(self.monitor.read(sequence), k, loop.create_future())
        self._waiting.append(mine)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        return await mine.answer

    async def _work(self) -> None:
        while self._waiting:
            k = self._waiting[0].k
            batch = [waiting for waiting in self._waiting if waiting.k == k][:MOST]
            self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
            await self._answer(batch, k)

    async def _answer(self, batch: list[_Waiting], k: Steps) -> None:
        """Where a batch fails, each question is asked alone, so that nobody pays for another's."""
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
            if not waiting.answer.done():  # the client may have left
                waiting.answer.set_result(scores)

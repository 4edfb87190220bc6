"""Workers elsewhere, each at one task: given the next one when it is done, replaced when it is lost, ended when it hangs. Where they are
and how words travel is for `Hand`s to know."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.execution.task import Deal, Failure, Outputs, Task, TaskResult
from holdfast.result import Record

FIRST = (
    10.0  # seconds, or a fifth of its time if that is more, in which a model must have answered at the inputs
)
GRACE = 5.0  # seconds, and a tenth of its time, after which a worker that should have ended is taken to hang
LOOK = 0.5  # seconds between two looks at the clock


@dataclass(frozen=True)
class Ready:
    """Where a worker is built first, that takes a while. fit: it can compute gradients."""

    fit: bool = True


@dataclass(frozen=True)
class Told:
    """What a task has found so far."""

    records: tuple[Record, ...]
    method: str
    outputs: Outputs | None = None


Said = Ready | Told | TaskResult | Failure


class Lost(Exception):
    """There is nobody any more who could say something."""


@dataclass(eq=False, kw_only=True)
class Hand(ABC):
    """One worker, what it is at, and since when."""

    task: Task | None = None
    since: float = 0.0
    ready: bool = False  # it has been built
    answered: bool = False  # the model did, at the inputs of the task

    @abstractmethod
    def give(self, task: Task) -> None: ...

    @abstractmethod
    def word(self) -> Said:
        """The next one, which is there. Lost: there will be none."""

    @abstractmethod
    def end(self) -> None: ...

    def excess(self) -> str:
        """Why it may not go on; empty: it may."""
        return ""

    def overdue(self) -> bool:
        assert self.task is not None
        passed, allowed = time.monotonic() - self.since, self.task.seconds
        too_long = passed > allowed + GRACE + allowed / 10 or (
            not self.answered and passed > max(FIRST, allowed / 5)
        )
        return self.ready and too_long


H = TypeVar("H", bound=Hand)


@dataclass(kw_only=True)
class Crew(ABC, Generic[H]):
    size: int
    hands: list[H] = field(default_factory=list)

    @abstractmethod
    def hire(self) -> H: ...

    @abstractmethod
    def wait_for_messages(self, busy: Sequence[H]) -> list[H]:
        """Those that have something to say, after a moment at most."""

    def unfit(self) -> None:
        """Who was hired cannot compute gradients; those to come must."""
        raise AssertionError

    def work(self, deal: Deal) -> None:
        """Until there is nothing left to do. Ctrl-C ends it; what the hands told is kept."""
        try:
            while self._fill(deal):
                self._listen(deal)
        except KeyboardInterrupt:
            deal.interrupt()
        finally:
            for hand in list(self.hands):
                self._dismiss(hand)

    def _fill(self, deal: Deal) -> bool:
        """Give everyone something to do. False: there is nothing left, and nothing in work."""
        for hand in list(self.hands):
            if hand.task is None and (task := deal.next()) is not None:
                self._give(hand, task, deal)
        while len(self.hands) < self.size and (task := deal.next()) is not None:
            self.hands.append(self.hire())
            self._give(self.hands[-1], task, deal)
        # Who is not there yet may never be: a cluster that has lost a machine has no place for it.
        idle = [hand for hand in self.hands if hand.task is None]
        absent = [hand for hand in self.hands if hand.task is not None and not hand.ready]
        for hand, other in zip(idle, absent, strict=False):
            self._dismiss(other)
            assert other.task is not None
            self._give(hand, other.task, deal)
        return any(hand.task is not None for hand in self.hands)

    def _listen(self, deal: Deal) -> None:
        busy = [hand for hand in self.hands if hand.task is not None]
        heard = self.wait_for_messages(busy)
        for hand in busy:
            assert hand.task is not None
            if hand in heard:
                self._hear(hand, hand.task, deal)
            elif hand.overdue():
                late = f"it had not come back after {time.monotonic() - hand.since:.0f} s and was ended"
                self._fail(hand, hand.task, deal, Failure(late, late=hand.answered))
            elif excess := hand.excess():
                self._fail(hand, hand.task, deal, Failure(excess))

    def _give(self, hand: H, task: Task, deal: Deal) -> None:
        hand.task, hand.since, hand.answered = task, time.monotonic(), False
        try:
            hand.give(task)
        except Lost as error:
            self._fail(hand, task, deal, Failure(str(error)))

    def _hear(self, hand: H, task: Task, deal: Deal) -> None:
        try:
            word = hand.word()
        except Lost as error:
            self._fail(hand, task, deal, Failure(str(error)))
            return
        if isinstance(word, Ready):
            hand.ready, hand.since = True, time.monotonic()
            if not word.fit:
                self.unfit()
                self._dismiss(hand)
                self.hands.append(self.hire())
                self._give(self.hands[-1], task, deal)
        elif isinstance(word, Told):
            hand.answered = True
            deal.receive_records(task, word.records, word.method, word.outputs)
        else:
            hand.task = None
            if isinstance(word, TaskResult):
                deal.finish_task(task, word)
            else:
                deal.handle_failure(task, word)

    def _fail(self, hand: H, task: Task, deal: Deal, failure: Failure) -> None:
        self._dismiss(hand)
        deal.handle_failure(task, failure)

    def _dismiss(self, hand: H) -> None:
        self.hands.remove(hand)
        hand.end()

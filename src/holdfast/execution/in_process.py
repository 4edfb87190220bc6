"""One task after another, in this process: a model that crashes or hangs takes the run with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.execution.task import Deal, Failure, Outputs, Task, Worker, describe_exception
from holdfast.result import Record


@dataclass(frozen=True)
class Here:
    @property
    def slots(self) -> int:
        return 1

    def run(self, worker: Worker, deal: Deal) -> None:
        try:
            while (task := deal.next()) is not None:
                try:
                    answer = worker.answer(task, partial(_tell, deal, task))
                except Exception as error:
                    deal.handle_failure(task, Failure(describe_exception(error), error=error))
                else:
                    deal.finish_task(task, answer)
        except _Deaf as error:
            raise error.why from error.why.__cause__


class _Deaf(BaseException):
    """Whoever should be told has failed, a full disk say: no fault of the task, so nothing on the way may take it for one."""

    def __init__(self, why: Exception) -> None:
        self.why = why


def _tell(
    deal: Deal, task: Task, records: Sequence[Record], method: str, outputs: Outputs | None = None
) -> None:
    try:
        deal.receive_records(task, records, method, outputs)
    except Exception as error:
        raise _Deaf(error) from error

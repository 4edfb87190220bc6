"""The executor without supervision: one task after another in this process.

A model that crashes or hangs ends the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.execution.task import Failure, Outputs, Task, TaskQueue, Worker, describe_exception
from holdfast.result import Record


@dataclass(frozen=True)
class InProcess:
    """Runs tasks in this process."""

    @property
    def slots(self) -> int:
        return 1

    def run(self, worker: Worker, deal: TaskQueue) -> None:
        try:
            while (task := deal.next()) is not None:
                try:
                    answer = worker.answer(task, partial(_report, deal, task))
                except Exception as error:
                    deal.handle_failure(task, Failure(describe_exception(error), error=error))
                else:
                    deal.finish_task(task, answer)
        except _ReportFailed as error:
            raise error.cause from error.cause.__cause__


class _ReportFailed(BaseException):
    """The scheduler could not store a report, for example on a full disk.

    It is no Exception, so that the worker does not handle it as a failure of the task.
    """

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _report(
    deal: TaskQueue, task: Task, records: Sequence[Record], method: str, outputs: Outputs | None = None
) -> None:
    try:
        deal.receive_records(task, records, method, outputs)
    except Exception as error:
        raise _ReportFailed(error) from error

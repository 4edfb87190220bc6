"""Where questions are answered: in this process, in supervised ones of their own, or on a Ray cluster. Executors know tasks and records;
no room knows executors."""

from holdfast.execution.in_process import Here
from holdfast.execution.local import Local
from holdfast.execution.task import Executor, Failure, Task, TaskResult, Worker

__all__ = ["Executor", "Failure", "Here", "Local", "Task", "TaskResult", "Worker"]

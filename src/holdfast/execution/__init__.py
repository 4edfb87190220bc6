"""Where questions are answered: in this process, in supervised ones of their own, or on a Ray cluster. Executors know tasks and records;
no room knows executors."""

from holdfast.execution.here import Here
from holdfast.execution.local import Local
from holdfast.execution.task import Answer, Executor, Failure, Task, Worker

__all__ = ["Answer", "Executor", "Failure", "Here", "Local", "Task", "Worker"]

"""Executors: tasks run in this process, in supervised worker processes, or on a Ray cluster.

Executors know only tasks and records, and no capability package depends on an executor.
"""

from holdfast.execution.in_process import InProcess
from holdfast.execution.local import Local
from holdfast.execution.task import Executor, Failure, Task, TaskResult, Worker

__all__ = ["Executor", "Failure", "InProcess", "Local", "Task", "TaskResult", "Worker"]

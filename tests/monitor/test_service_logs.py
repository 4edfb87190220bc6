"""While a monitor is served, its loggers write to standard error; afterwards the process logs as before."""

import logging

import pytest

from holdfast.monitor.service.logs import LOGGERS, service_logs


@service_logs()
def serve_and_fail() -> None:
    assert logging.root.manager.disable == logging.NOTSET
    assert not logging.getLogger("uvicorn.error").propagate
    raise ZeroDivisionError


def test_logging_is_restored_after_the_service() -> None:
    disabled = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)  # as the command line does
        before = [
            (logger.handlers, logger.propagate, logger.level) for logger in map(logging.getLogger, LOGGERS)
        ]
        with pytest.raises(ZeroDivisionError):
            serve_and_fail()
        assert logging.root.manager.disable == logging.WARNING
        assert before == [
            (logger.handlers, logger.propagate, logger.level) for logger in map(logging.getLogger, LOGGERS)
        ]
    finally:
        logging.disable(disabled)

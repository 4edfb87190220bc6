"""The service's log: errors with their lines, but no messages, which may quote a client's text."""

import contextlib
import logging
import traceback
from collections.abc import Iterator

LOGGED_FRAMES = 3  # Number of innermost stack frames in the log of an error (chosen by hand).
log = logging.getLogger("holdfast.serve")
LOGGERS = ("holdfast.serve", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "websockets")


def where(error: BaseException) -> str:
    """Return the type of an error and the lines that it came from, without its message."""
    lines = [
        f"{frame.filename}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)[-LOGGED_FRAMES:]
    ]
    return " < ".join([type(error).__name__, *reversed(lines)])


class MessageFreeFormatter(logging.Formatter):
    """Formats errors without their messages, for the server's loggers too."""

    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return where(error) if isinstance(error, BaseException) else ""


@contextlib.contextmanager
def service_logs() -> Iterator[None]:
    """Log warnings of the service and errors of its server to standard error only, until the block ends.

    The server warns of every malformed request, which could be used to fill the disk, so these warnings are
    dropped.
    """
    disabled = logging.root.manager.disable
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    logging.disable(logging.NOTSET)  # the command line silences warnings
    handler = logging.StreamHandler()
    handler.setFormatter(MessageFreeFormatter("%(asctime)s %(levelname)s %(message)s"))
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if logger is log else logging.ERROR)
    try:
        yield
    finally:
        logging.disable(disabled)
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)

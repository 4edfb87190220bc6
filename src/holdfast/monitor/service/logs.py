"""The service's log: errors with their lines, but no messages, which may quote a client's text."""

import logging
import traceback

LOGGED_FRAMES = 3  # Number of innermost stack frames in the log of an error (chosen by hand).
log = logging.getLogger("holdfast.serve")


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


def begin() -> None:
    """Log warnings of the service and errors of its server to standard error only.

    The server warns of every malformed request, which could be used to fill the disk, so these warnings are
    dropped.
    """
    logging.disable(logging.NOTSET)  # the command line silences warnings
    handler = logging.StreamHandler()
    handler.setFormatter(MessageFreeFormatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("holdfast.serve", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "websockets"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if logger is log else logging.ERROR)

"""What the service writes down: what failed and in which line, never what it was asked. A message of an error may quote a text."""

import logging
import traceback

FRAMES = 3  # the innermost lines of an error
log = logging.getLogger("holdfast.serve")


def where(error: BaseException) -> str:
    """The kind of an error and the lines it came from, without its message."""
    lines = [
        f"{frame.filename}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]
    ]
    return " < ".join([type(error).__name__, *reversed(lines)])


class Discreet(logging.Formatter):
    """Errors without their messages, for the loggers of the server too."""

    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return where(error) if isinstance(error, BaseException) else ""


def begin() -> None:
    """Warnings of the service and errors of its server go to standard error, and nowhere else. The server warns of every request that
    is no HTTP: whoever sends such ones could fill the disk."""
    logging.disable(logging.NOTSET)  # the command line silences warnings
    handler = logging.StreamHandler()
    handler.setFormatter(Discreet("%(asctime)s %(levelname)s %(message)s"))
    for name in ("holdfast.serve", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "websockets"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if logger is log else logging.ERROR)

"""Read one damaged file and classify the outcome."""

import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.fuzz.readers import Reader
from holdfast.errors import HoldfastError

LIMIT = 30  # Seconds for reading one file; the files have a few kilobytes each.


@dataclass(frozen=True)
class Count:
    """Outcomes of one reader.

    `memory`: growth of the peak memory in bytes, without the first file, which triggers imports.
    """

    tried: int = 0
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    memory: int = 0
    escapes: Mapping[str, int] = field(default_factory=dict)

    @property
    def escaped(self) -> int:
        return sum(self.escapes.values())

    def plus(self, other: "Count") -> "Count":
        return Count(
            self.tried + other.tried,
            self.read + other.read,
            self.refused + other.refused,
            max(self.slowest, other.slowest),
            self.memory + other.memory,
            dict(Counter(self.escapes) + Counter(other.escapes)),
        )


class TooLong(BaseException):
    """The time limit was exceeded. Not an Exception, so that no reader mistakes it for a damaged file."""


def tried(reader: Reader, honest: Path, seed: int, number: int, keep: Path | None = None) -> Count:
    """Damage and read file `number` of this seed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        path = reader.damaged(honest, Path(place), Random(f"{reader.name} {seed} {number}"))
        before, began = _peak(), time.monotonic()
        escape = _escape(reader, path)
        passed = time.monotonic() - began
        if escape and keep is not None:
            target = keep / reader.name.replace(" ", "_").replace(",", "") / f"{number}"
            shutil.copytree(place, target, dirs_exist_ok=True)
    told = {} if escape in (None, "") else {str(escape): 1}
    return Count(1, escape is None, escape == "", passed, _peak() - before, told)


def _escape(reader: Reader, path: Path) -> str | None:
    """None if the file was read, an empty text if it was refused, otherwise the kind of the escape."""
    old = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
        return None
    except HoldfastError as error:
        return "" if str(error).strip() else "an error without words"
    except TooLong:
        return f"longer than {LIMIT} s"
    except Exception as error:
        return type(error).__name__
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def _too_long(*_: object) -> None:
    raise TooLong


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

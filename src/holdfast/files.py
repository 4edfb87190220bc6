"""Files that may be packed by gzip, and of which no size is believed."""

import gzip
import zlib
from pathlib import Path

from holdfast.errors import UnreadableFile

PART = 2**20  # bytes unpacked at once


def unpacked(path: Path, most: int, too_large: str) -> bytes:
    """What a file holds. UnreadableFile where it cannot be read, or holds more than `most` bytes, which is `too_large`: no more are ever
    unpacked, so a small file cannot fill the memory."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b" or path.suffix == ".gz"
        with gzip.open(path) if packed else path.open("rb") as source:
            content = bytearray()
            while len(content) <= most and (part := source.read(PART)):
                content += part
    except FileNotFoundError as error:
        raise UnreadableFile(f"{path}: no such file. Check the path.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableFile(f"{path}: the gzip data is damaged ({error}). Compress or download it again.") from error
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read ({error.strerror or error}).") from error
    if len(content) > most:
        raise UnreadableFile(f"{path}: {too_large}")
    return bytes(content)

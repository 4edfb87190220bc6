"""Files that strangers made: they may be packed, damaged or made to do harm. No size in them is believed, and whatever a reader of another
package raises becomes an error of the house that names the file."""

import contextlib
import gzip
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import HoldfastError, UnreadableFile
from holdfast.foreign_text import first_line
from holdfast.memory_budget import available_bytes, bytes_told

PART = 2**20  # bytes unpacked at once
LARGEST_DATA = 8 * 2**30
LARGEST_TEXT = 2**29
LONGEST_NUMBER = 300  # digits of a whole number in JSON: a float holds no larger one
LARGEST_JSON = 2**27  # Python needs some twenty times as much to hold it

Array = npt.NDArray[Any]


@contextlib.contextmanager
def in_words(
    where: object, what: str, hint: str, kind: type[HoldfastError] = UnreadableFile
) -> Iterator[None]:
    """Around what reads: anything that is raised there, and is not of the house, becomes one that says where, what and what to do."""
    try:
        yield
    except HoldfastError:
        raise
    except MemoryError as error:
        raise kind(
            f"{where}: does not fit into the memory that is left ({first_line(error)}). {hint}"
        ) from error
    except Exception as error:  # a damaged file fails in any layer of whatever reads it
        raise kind(f"{where}: {what} ({first_line(error)}). {hint}") from error


def new_file(path: Path) -> IO[bytes]:
    """Open a file for writing that nobody else made: what lies there, a link too, is taken away first. In a folder that somebody sent, a
    link of the expected name could lead to a file of the user's."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def existing(path: Path, most: int = LARGEST_DATA, too_large: str = "") -> Path:
    """UnreadableFile where there is no such file, or it holds more than `most` bytes."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            raise UnreadableFile(
                f"{path}: {'is a folder' if path.is_dir() else 'no such file'}. Check the path."
            )
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # a name that no file can have
        raise UnreadableFile(
            f"{str(path)[:300]!r}: no such file ({first_line(error)}). Check the path."
        ) from error
    if size > most:
        raise UnreadableFile(
            f"{path}: {too_large or f'larger than {bytes_told(most)}. Split the data into several runs.'}"
        )
    return path


def read_unpacked(path: Path, most: int, too_large: str) -> bytes:
    """What a file holds, packed by gzip or not. UnreadableFile where it cannot be read, or holds more than `most` bytes, which is
    `too_large`: no more are ever unpacked, so a small file cannot fill the memory."""
    with (
        in_words(
            existing(path, most, too_large), "the gzip data is damaged", "Compress or download it again."
        ),
        path.open("rb") as file,
    ):
        packed = file.read(2) == b"\x1f\x8b" or path.suffix == ".gz"
        file.seek(0)
        if not packed:
            return file.read()
        content = bytearray()
        with gzip.GzipFile(fileobj=file) as source:
            while part := source.read(PART):
                content += part
                if len(content) > most:
                    raise UnreadableFile(f"{path}: {too_large}")
        return bytes(content)


def inflate(data: bytes, most: int = LARGEST_DATA) -> bytes:
    """What zlib.compress packed; ValueError where it is damaged, or more than `most` bytes."""
    source = zlib.decompressobj()
    content = source.decompress(data, min(most, available_bytes() // 2))
    if not source.eof:
        raise ValueError("packed numbers end too early, or are too many")
    return content


def text_of(path: Path, most: int = LARGEST_TEXT) -> str:
    """A file of UTF-8."""
    too_large = f"larger than {bytes_told(most)}, and it is read as a whole. Split it into several files."
    with in_words(path, "not UTF-8 text", "Write it as UTF-8."):
        return existing(path, most, too_large).read_text(encoding="utf-8-sig")


def json_of(path: Path, hint: str) -> Any:
    """A file of JSON, of a depth that Python reads."""
    text = text_of(path, LARGEST_JSON)
    with in_words(path, "not JSON", hint):
        return json.loads(text, parse_int=_whole_number)


def _whole_number(text: str) -> int:
    """As JSON has it. More digits mean no number of ours, and make float() of it fail wherever that is."""
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def array_of(source: IO[bytes], held: int) -> Array:
    """The array of a .npy file, of which `held` bytes are there: ValueError unless it is as large as it says, and no Python objects."""
    version = np.lib.format.read_magic(source)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format is {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = header(source)
    if dtype.hasobject or dtype.names is not None or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}")
    count, rest = math.prod(shape), held - source.tell()
    if any(size < 0 for size in shape) or count * dtype.itemsize != rest or (count == 0 and shape[0] != 0):
        raise ValueError(
            f"it says {dtype} of shape {shape}, {count * dtype.itemsize} bytes, but {rest} are there"
        )
    flat = np.empty(count, dtype)
    kept = flat.view(np.uint8)
    done = 0
    while done < rest and (part := source.read(min(PART, rest - done))):
        kept[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if done != rest or source.read(1):  # reading on to the end makes an archive check its sum
        raise ValueError("it ends too early, or too late")
    return flat.reshape(shape[::-1]).transpose() if by_columns else flat.reshape(shape)


def array_in(data: bytes) -> Array:
    """What numpy.save wrote. ValueError where it is damaged."""
    return array_of(io.BytesIO(data), len(data))


def read_array(path: Path, hint: str) -> Array:
    """The array of a .npy file."""
    with in_words(existing(path), "cannot be read as .npy", hint), path.open("rb") as file:
        fits(os.fstat(file.fileno()).st_size, path)
        return array_of(file, os.fstat(file.fileno()).st_size)


def read_arrays(path: Path, hint: str) -> dict[str, Array]:
    """The arrays of a .npz file by their names."""
    with in_words(existing(path), "cannot be read as .npz", hint), zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise UnreadableFile(f"{path}: two of its arrays have the same name. {hint}")
        fits(sum(member.file_size for member in members.values()), path)
        found = {}
        for name, member in members.items():
            with in_words(path, f"cannot be read as .npz: its {name}", hint), archive.open(member) as source:
                found[name] = array_of(source, member.file_size)
        return found


def fits(size: int, path: Path) -> None:
    """UnreadableFile where there is no room for an array of so many bytes and what is made of it."""
    most = min(LARGEST_DATA, available_bytes() // 2)
    if size > most:
        raise UnreadableFile(
            f"{path}: unpacks to {bytes_told(size)}; here {bytes_told(most)} at most are read. Split the data into several runs."
        )

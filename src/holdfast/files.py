"""Reading untrusted files, which may be compressed, damaged or malicious.

No size stated in a file is trusted, and every exception of another package's reader becomes a `HoldfastError`
that names the file.
"""

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
from holdfast.memory_budget import available_bytes, format_bytes, is_out_of_memory

CHUNK_BYTES = 2**20  # Bytes decompressed at once; chosen by hand.
LARGEST_DATA = 8 * 2**30  # Bytes of the largest data file that is read; chosen by hand.
LARGEST_TEXT = 2**29  # Bytes of the largest text file that is read; chosen by hand.
LONGEST_NUMBER = 300  # Digits of an integer in JSON: the largest float64 has 309.
# Bytes of the largest JSON file: Python needs about twenty times as much memory for its objects.
LARGEST_JSON = 2**27

Array = npt.NDArray[Any]


@contextlib.contextmanager
def explained_errors(
    where: object, what: str, hint: str, kind: type[HoldfastError] = UnreadableFile
) -> Iterator[None]:
    """Turn every exception inside, except a HoldfastError, into one that says where, what and what to do."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # a damaged file may fail anywhere inside its reader
        if is_out_of_memory(error):
            raise kind(
                f"{where}: does not fit into the memory that is left ({first_line(error)}). {hint}"
            ) from error
        raise kind(f"{where}: {what} ({first_line(error)}). {hint}") from error


def new_file(path: Path) -> IO[bytes]:
    """Open a new file for writing; an existing file or link is removed first.

    In a received folder, a link of the expected name could point to one of the user's files.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


def require_file(path: Path, most: int = LARGEST_DATA, too_large: str = "") -> Path:
    """Return the path; raise UnreadableFile if there is no such file or it has more than `most` bytes."""
    try:
        if not path.is_file():  # reading a pipe or a device may never end
            raise UnreadableFile(
                f"{path}: {'is a folder' if path.is_dir() else 'no such file'}. Check the path."
            )
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # not a valid file name
        raise UnreadableFile(
            f"{str(path)[:300]!r}: no such file ({first_line(error)}). Check the path."
        ) from error
    if size > most:
        raise UnreadableFile(
            f"{path}: {too_large or f'larger than {format_bytes(most)}. Split the data into several runs.'}"
        )
    return path


def read_unpacked(path: Path, most: int, too_large: str) -> bytes:
    """The content of a file, decompressed if it is a gzip file.

    Raises:
        UnreadableFile: It cannot be read, or holds more than `most` bytes (message `too_large`). Never more
            than that is decompressed, so a small file cannot fill the memory.
    """
    with (
        explained_errors(
            require_file(path, most, too_large), "the gzip data is damaged", "Compress or download it again."
        ),
        path.open("rb") as file,
    ):
        packed = file.read(2) == b"\x1f\x8b" or path.suffix == ".gz"
        file.seek(0)
        if not packed:
            return file.read()
        content = bytearray()
        with gzip.GzipFile(fileobj=file) as source:
            while part := source.read(CHUNK_BYTES):
                content += part
                if len(content) > most:
                    raise UnreadableFile(f"{path}: {too_large}")
        return bytes(content)


def inflate(data: bytes, most: int = LARGEST_DATA) -> bytes:
    """Decompress the output of zlib.compress; ValueError if it is damaged or has more than `most` bytes."""
    source = zlib.decompressobj()
    content = source.decompress(data, min(most, available_bytes() // 2))
    if not source.eof:
        raise ValueError("the compressed numbers end too early, or are too many")
    return content


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """The text of a UTF-8 file."""
    too_large = f"larger than {format_bytes(most)}, and it is read as a whole. Split it into several files."
    with explained_errors(path, "not UTF-8 text", "Write it as UTF-8."):
        return require_file(path, most, too_large).read_text(encoding="utf-8-sig")


def read_json(path: Path, hint: str) -> Any:
    """The content of a JSON file."""
    text = read_text(path, LARGEST_JSON)
    with explained_errors(path, "not JSON", hint):
        return json.loads(text, parse_int=_whole_number)


def _whole_number(text: str) -> int:
    """An integer of JSON. One with more digits would make float() fail later."""
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def read_npy_stream(source: IO[bytes], held: int) -> Array:
    """The array of a .npy stream of `held` bytes.

    Raises:
        ValueError: Its size differs from its header, or it holds Python objects.
    """
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
    while done < rest and (part := source.read(min(CHUNK_BYTES, rest - done))):
        kept[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if done != rest or source.read(1):  # reading to the end makes a zip archive verify its checksum
        raise ValueError("it ends too early, or too late")
    return flat.reshape(shape[::-1]).transpose() if by_columns else flat.reshape(shape)


def array_from_bytes(data: bytes) -> Array:
    """The array that numpy.save wrote; ValueError if it is damaged."""
    return read_npy_stream(io.BytesIO(data), len(data))


def read_array(path: Path, hint: str) -> Array:
    """The array of a .npy file."""
    with explained_errors(require_file(path), "cannot be read as .npy", hint), path.open("rb") as file:
        require_memory(os.fstat(file.fileno()).st_size, path)
        return read_npy_stream(file, os.fstat(file.fileno()).st_size)


def read_arrays(path: Path, hint: str) -> dict[str, Array]:
    """The arrays of a .npz file, by name."""
    with (
        explained_errors(require_file(path), "cannot be read as .npz", hint),
        zipfile.ZipFile(path) as archive,
    ):
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise UnreadableFile(f"{path}: two of its arrays have the same name. {hint}")
        require_memory(sum(member.file_size for member in members.values()), path)
        found = {}
        for name, member in members.items():
            with (
                explained_errors(path, f"cannot be read as .npz: its {name}", hint),
                archive.open(member) as source,
            ):
                found[name] = read_npy_stream(source, member.file_size)
        return found


def require_memory(size: int, path: Path) -> None:
    """Raise UnreadableFile if an array of `size` bytes and a copy of it do not fit into memory."""
    most = min(LARGEST_DATA, available_bytes() // 2)
    if size > most:
        raise UnreadableFile(
            f"{path}: unpacks to {format_bytes(size)}; here {format_bytes(most)} at most are read. Split the "
            "data into several runs."
        )

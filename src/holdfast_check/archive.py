"""The form of a bundle as a zip file, which is determined by its contents; whoever reads one trusts nothing.

Entries are ordered by name, carry the earliest time of the format, and have no bytes between or around them.
So each header can be written in only one way, and any change to a header or any added byte is detected.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast_check.errors import Rejected
from holdfast_check.limits import look_at_clock

LARGEST_FILE = 2**31  # Bytes: limit for one file of a bundle (chosen by hand).
# Bytes: limit for all files, packed and unpacked. Beyond 4 GiB offsets need more than four bytes, and zip has
# two ways to write these.
LARGEST_BUNDLE = 2**32 - 2**20
CHUNK_BYTES = 2**20  # Bytes that are read at once.
MOST_FILES = 1_000_000  # Limit for the number of files (chosen by hand).
# Limit for the compression ratio; a file that would shrink more is stored uncompressed (chosen by hand).
LARGEST_RATIO = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,4}")
LONGEST_NAME = 200  # Characters: limit for the path of a file in a bundle (chosen by hand).
AGAIN = "Request the bundle again."
# Fields of zip headers: creator system, version, flag bits of the date, and file attributes.
UNIX, VERSION, FIRST_DAY, PLAIN_FILE = 3, 20, 1 << 5 | 1, (stat.S_IFREG | 0o644) << 16
LOCAL, LINE, LARGE_END = (
    struct.Struct("<4s5H3I2H"),
    struct.Struct("<4s4B4H3I5H2I"),
    struct.Struct("<4sQ2H2I4Q"),
)


def is_name(name: str) -> bool:
    """Return whether a name is allowed: not hidden, inside the folder, unambiguous on all systems."""
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


@contextlib.contextmanager
def _rejects_damage() -> Iterator[None]:
    """Turn what zipfile and zlib raise for damaged files into `Rejected`."""
    try:
        yield
    except Rejected:
        raise
    except Exception as error:  # zipfile raises many types.
        raise Rejected(f"it cannot be read as a bundle ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Archive:
    """An open bundle whose form was checked. Files are read one by one, and none is written to the disk."""

    archive: zipfile.ZipFile
    names: tuple[str, ...]

    def size(self, name: str) -> int:
        """The unpacked size of a file."""
        return self.archive.getinfo(name).file_size

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file, piece by piece. Rejected if it is damaged or has another size than declared."""
        with _rejects_damage(), self.archive.open(name) as source:
            left = self.size(name)
            while left and (some := source.read(min(CHUNK_BYTES, left))):
                look_at_clock()
                left -= len(some)
                yield some
            if left or source.read(1):
                raise Rejected(f"{name}: its size is not the declared one")

    def read(self, name: str, most: int) -> bytes:
        """The content of a file; rejected if it has more than `most` bytes."""
        if self.size(name) > most:
            raise Rejected(f"{name}: larger than {most} bytes")
        return b"".join(self.chunks(name))

    def sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        for some in self.chunks(name):
            digest.update(some)
        return digest.hexdigest()


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a bundle. Rejected if the file is not exactly what `holdfast bundle` writes."""
    with contextlib.ExitStack() as closing:
        with _rejects_damage():
            size = path.stat().st_size
            if size > LARGEST_BUNDLE + 2**28:
                raise Rejected("it is larger than a bundle can be")
            file = closing.enter_context(path.open("rb"))
            archive = closing.enter_context(zipfile.ZipFile(file))
            members = archive.infolist()
            check_members(members, size, LARGEST_BUNDLE)
            check_bytes(file, members, size)
        yield Archive(archive, tuple(info.filename for info in members))


def check_bytes(file: BinaryIO, members: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Rejected if headers and directory are not the bytes that the entries determine."""
    end = 0
    for info in members:
        file.seek(end)
        if info.header_offset != end or file.read(LOCAL.size + len(info.filename)) != header_bytes(info):
            raise Rejected(f"{info.filename}: its two headers differ, or there are bytes before it. {AGAIN}")
        end += LOCAL.size + len(info.filename) + info.compress_size
    file.seek(end)
    if file.read(min(size - end, MOST_FILES * 300)) != directory_bytes(members, end):
        raise Rejected(f"it has bytes that belong to no file, or another program packed it. {AGAIN}")


def check_members(members: Sequence[zipfile.ZipInfo], packed: int, free: int) -> None:
    """Rejected if a name is unsafe or occurs twice, an entry is not a regular file, or the files exceed
    a limit."""
    seen, before, total = set[str](), "", 0
    for count, info in enumerate(members, 1):
        name = info.filename
        shown = repr(name[:LONGEST_NAME])
        if not is_name(name) or info.orig_filename != name:
            raise Rejected(
                f"it holds {shown}, a name that could lead out of a folder, or be read in two ways."
            )
        if name.casefold() in seen:
            raise Rejected(f"it holds {shown} twice, so it is ambiguous. {AGAIN}")
        if stat.S_IFMT(info.external_attr >> 16) != stat.S_IFREG:
            raise Rejected(f"{shown} is a link or a device, not a regular file. Do not open it.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits:
            raise Rejected(f"{shown} is encrypted, or compressed in a way that bundles do not use. {AGAIN}")
        total += info.file_size
        if (
            info.file_size > max(LARGEST_RATIO * info.compress_size, info.compress_size + 1024)
            or info.compress_size > packed
        ):
            raise Rejected(
                f"{shown} declares that it unpacks to {info.file_size} bytes, more than it can hold. "
                "Do not open it."
            )
        if info.file_size > LARGEST_FILE or total > min(LARGEST_BUNDLE, free) or count > MOST_FILES:
            raise Rejected(
                f"unpacks to more than {min(LARGEST_BUNDLE, free) // 2**20} MiB, or to too many "
                "files. Free "
                "some disk."
            )
        if name < before:
            raise Rejected(f"{shown} is out of order: another program packed it. {AGAIN}")
        seen.add(name.casefold())
        before = name


def header_bytes(info: zipfile.ZipInfo) -> bytes:
    """Return the local header that `pack` writes for this entry of the central directory."""
    sizes = info.CRC, info.compress_size, info.file_size, len(info.filename), 0
    return LOCAL.pack(b"PK\3\4", VERSION, 0, info.compress_type, 0, FIRST_DAY, *sizes) + info.filename.encode(
        "ascii"
    )


def directory_bytes(members: Sequence[zipfile.ZipInfo], begin: int) -> bytes:
    """Return the central directory and the end record that `pack` writes."""
    lines = bytearray()
    for info in members:
        sizes = info.CRC, info.compress_size, info.file_size, len(info.filename), 0, 0, 0, 0
        told = VERSION, UNIX, VERSION, 0, 0, info.compress_type, 0, FIRST_DAY
        lines += LINE.pack(b"PK\1\2", *told, *sizes, PLAIN_FILE, info.header_offset) + info.filename.encode(
            "ascii"
        )
    count, size = len(members), len(lines)
    if count >= 2**16:
        lines += LARGE_END.pack(b"PK\6\6", LARGE_END.size - 12, 45, 45, 0, 0, count, count, size, begin)
        lines += struct.pack("<4sIQI", b"PK\6\7", 0, begin + size, 1)
    few = min(count, 2**16 - 1)
    return bytes(lines) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, few, few, size, begin, 0)

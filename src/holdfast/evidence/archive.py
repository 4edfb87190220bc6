"""The file format of a bundle: a zip file determined by its contents, whose reader trusts nothing.

Entries are ordered by name, carry the earliest time of the format, and have no bytes between or around them.
So each header can be written in only one way, and any change to a header or any added byte is detected.
"""

import contextlib
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import StoreError, UnreadableFile
from holdfast.files import CHUNK_BYTES, explained_errors, require_file
from holdfast.memory_budget import format_bytes

LARGEST_FILE = 2**31  # Bytes: limit for one file of a bundle (chosen by hand).
# Bytes: limit for all files, packed and unpacked. Beyond 4 GiB offsets need more than four bytes, and zip has
# two ways to write these.
LARGEST_BUNDLE = 2**32 - 2**20
MOST_FILES = 1_000_000  # Limit for the number of files (chosen by hand).
# Limit for the compression ratio; a file that would shrink more is stored uncompressed (chosen by hand).
LARGEST_RATIO = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,4}")
LONGEST_NAME = 200  # Characters: limit for the path of a file in a bundle (chosen by hand).
EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # The earliest time that zip can store.
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


def files_of(folder: Path) -> list[str]:
    """List the names of all files below a folder, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def pack(folder: Path, target: Path) -> Path:
    """Pack all files below the folder, atomically.

    StoreError if a name, a size or the disk does not allow it.
    """
    names = files_of(folder)
    total = 0
    for name in names:
        size = (folder / name).stat().st_size
        total += size
        if not is_name(name):
            raise StoreError(
                f"{name!r}: not allowed in a bundle: use letters, digits, '.', '_', '+' and '-', in at most "
                "five folders."
            )
        if size > LARGEST_FILE or total > LARGEST_BUNDLE:
            raise StoreError(
                f"{target}: {name} makes it larger than a bundle may be "
                f"({format_bytes(LARGEST_FILE)} a file, {format_bytes(LARGEST_BUNDLE)} in all). "
                f"Leave the model out, or split the run into shards."
            )
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name in names:
                info = zipfile.ZipInfo(name, EARLIEST_TIME)
                info.create_system, info.external_attr = UNIX, PLAIN_FILE
                info.compress_type = _kind(folder / name)
                info.file_size = (folder / name).stat().st_size
                with (folder / name).open("rb") as source, archive.open(info, "w") as sink:
                    shutil.copyfileobj(source, sink, CHUNK_BYTES)
        os.replace(part, target)
    except OSError as error:
        raise StoreError(
            f"{target}: the bundle cannot be written ({error}). Choose another place."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def _kind(path: Path) -> int:
    """Compress, unless the ratio would exceed LARGEST_RATIO: the reader rejects such files as zip bombs."""
    packer, size = zlib.compressobj(wbits=-15), 0
    with path.open("rb") as source:
        while some := source.read(CHUNK_BYTES):
            size += len(packer.compress(some))
    size += len(packer.flush())
    return zipfile.ZIP_STORED if path.stat().st_size >= LARGEST_RATIO * size else zipfile.ZIP_DEFLATED


def unpack(path: Path, folder: Path) -> list[str]:
    """Extract a bundle into an empty folder and return the names of its files, in order.

    UnreadableFile if the file is not exactly what `pack` writes. Nothing is written outside the folder, and
    never more bytes than the headers declare.
    """
    size = (
        require_file(
            path, LARGEST_BUNDLE + 2**28, f"larger than {format_bytes(LARGEST_BUNDLE)}, which no bundle is."
        )
        .stat()
        .st_size
    )
    with (
        explained_errors(path, "not a bundle: it cannot be read as a zip file", AGAIN),
        path.open("rb") as file,
        zipfile.ZipFile(file) as archive,
    ):
        members = archive.infolist()
        _check_members(path, members, size, shutil.disk_usage(folder).free // 2)
        end = 0
        for info in members:
            file.seek(end)
            if info.header_offset != end or file.read(LOCAL.size + len(info.filename)) != _header(info):
                raise UnreadableFile(
                    f"{path}: {info.filename}: its two headers differ, or there are bytes before it. {AGAIN}"
                )
            end += LOCAL.size + len(info.filename) + info.compress_size
        file.seek(end)
        if file.read(min(size - end, MOST_FILES * 300)) != _list(members, end):
            raise UnreadableFile(
                f"{path}: it has bytes that belong to no file, or another program packed it. {AGAIN}"
            )
        for info in members:
            with explained_errors(path, f"{info.filename} is damaged", AGAIN):
                _unpack_member(archive, info, folder / info.filename)
    return [info.filename for info in members]


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo], packed: int, free: int) -> None:
    """UnreadableFile if a name is unsafe or occurs twice, an entry is not a regular file, or the files exceed
    a limit."""
    seen, before, total = set[str](), "", 0
    for count, info in enumerate(members, 1):
        name = info.filename
        shown = repr(name[:LONGEST_NAME])
        if not is_name(name) or info.orig_filename != name:
            raise UnreadableFile(
                f"{path}: it holds {shown}, a name that could lead out of a folder, or be read in two ways."
            )
        if name.casefold() in seen:
            raise UnreadableFile(f"{path}: it holds {shown} twice, so it is ambiguous. {AGAIN}")
        if stat.S_IFMT(info.external_attr >> 16) != stat.S_IFREG:
            raise UnreadableFile(
                f"{path}: {shown} is a link or a device, not a regular file. Do not open it."
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits:
            raise UnreadableFile(
                f"{path}: {shown} is encrypted, or compressed in a way that bundles do not use. {AGAIN}"
            )
        total += info.file_size
        if (
            info.file_size > max(LARGEST_RATIO * info.compress_size, info.compress_size + 1024)
            or info.compress_size > packed
        ):
            raise UnreadableFile(
                f"{path}: {shown} declares that it unpacks to {info.file_size} bytes, more than it can hold. "
                "Do not open it."
            )
        if info.file_size > LARGEST_FILE or total > min(LARGEST_BUNDLE, free) or count > MOST_FILES:
            raise UnreadableFile(
                f"{path}: unpacks to more than {format_bytes(min(LARGEST_BUNDLE, free))}, or to too many "
                "files. Free "
                "some disk."
            )
        if name < before:
            raise UnreadableFile(f"{path}: {shown} is out of order: another program packed it. {AGAIN}")
        seen.add(name.casefold())
        before = name


def _header(info: zipfile.ZipInfo) -> bytes:
    """Return the local header that `pack` writes for this entry of the central directory."""
    sizes = info.CRC, info.compress_size, info.file_size, len(info.filename), 0
    return LOCAL.pack(b"PK\3\4", VERSION, 0, info.compress_type, 0, FIRST_DAY, *sizes) + info.filename.encode(
        "ascii"
    )


def _list(members: Sequence[zipfile.ZipInfo], begin: int) -> bytes:
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


def _unpack_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    """Extract one file.

    ValueError if its size differs from the declared one; zipfile compares the checksum.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as sink:
        left = info.file_size
        while left and (some := source.read(min(CHUNK_BYTES, left))):
            sink.write(some)
            left -= len(some)
        if left or source.read(1):
            raise ValueError("its size is not the declared one")

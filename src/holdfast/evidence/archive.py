"""The file of a bundle: a zip whose bytes follow from the names and contents of its files, and which is believed in nothing when read.

Names are in order, times are those of the format's beginning, nothing stands between or around the entries. So there is one way to write
each header, and whatever is changed in one, or added beside the files, is seen.
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
from holdfast.files import PART, existing, in_words
from holdfast.memory_budget import bytes_told

LARGEST_FILE = 2**31
LARGEST = (
    2**32 - 2**20
)  # of all files, packed and unpacked: where offsets need more than four bytes, zip has two ways to write them
MOST_FILES = 1_000_000
RATIO = 100  # by which a file may become smaller; one that would become smaller yet is kept as it is
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,4}")
LONGEST_NAME = 200
BEGINNING = (1980, 1, 1, 0, 0, 0)
AGAIN = "Ask for the bundle again."
UNIX, VERSION, FIRST_DAY, PLAIN_FILE = 3, 20, 1 << 5 | 1, (stat.S_IFREG | 0o644) << 16  # as headers say it
LOCAL, LINE, LARGE_END = (
    struct.Struct("<4s5H3I2H"),
    struct.Struct("<4s4B4H3I5H2I"),
    struct.Struct("<4sQ2H2I4Q"),
)


def is_name(name: str) -> bool:
    """May a file of a bundle be called so? No way out of a folder, no hidden file, nothing that two systems read differently."""
    return len(name) <= LONGEST_NAME and NAME.fullmatch(name) is not None


def files_of(folder: Path) -> list[str]:
    """The names of all files below a folder, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def pack(folder: Path, target: Path) -> Path:
    """All files below the folder as one; the whole file or none of it. StoreError where that is not possible."""
    names = files_of(folder)
    total = 0
    for name in names:
        size = (folder / name).stat().st_size
        total += size
        if not is_name(name):
            raise StoreError(
                f"{name!r}: a bundle has no such names: letters, digits, '.', '_', '+' and '-', in at most five folders."
            )
        if size > LARGEST_FILE or total > LARGEST:
            raise StoreError(
                f"{target}: {name} makes it larger than a bundle may be ({bytes_told(LARGEST_FILE)} a file, {bytes_told(LARGEST)} in all). "
                f"Leave the model out, or cut the run into shards."
            )
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name in names:
                info = zipfile.ZipInfo(name, BEGINNING)
                info.create_system, info.external_attr = UNIX, PLAIN_FILE
                info.compress_type = _kind(folder / name)
                info.file_size = (folder / name).stat().st_size
                with (folder / name).open("rb") as source, archive.open(info, "w") as sink:
                    shutil.copyfileobj(source, sink, PART)
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
    """Packed, but for what would shrink so much that nobody could tell it from a file that is made to fill disks."""
    packer, size = zlib.compressobj(wbits=-15), 0
    with path.open("rb") as source:
        while some := source.read(PART):
            size += len(packer.compress(some))
    size += len(packer.flush())
    return zipfile.ZIP_STORED if path.stat().st_size >= RATIO * size else zipfile.ZIP_DEFLATED


def unpack(path: Path, folder: Path) -> list[str]:
    """The files of a bundle below an empty folder -> their names, in order. UnreadableFile where the file is not exactly what `pack` writes
    of some files: nothing is written outside the folder, and nothing beyond what its size allows."""
    size = (
        existing(path, LARGEST + 2**28, f"larger than {bytes_told(LARGEST)}, which no bundle is.")
        .stat()
        .st_size
    )
    with (
        in_words(path, "not a bundle: it cannot be read as a zip file", AGAIN),
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
                    f"{path}: {info.filename}: its two headers differ, or something stands before it. {AGAIN}"
                )
            end += LOCAL.size + len(info.filename) + info.compress_size
        file.seek(end)
        if file.read(min(size - end, MOST_FILES * 300)) != _list(members, end):
            raise UnreadableFile(
                f"{path}: something stands beside its files, or another program packed it. {AGAIN}"
            )
        for info in members:
            with in_words(path, f"{info.filename} is damaged", AGAIN):
                _unpack_member(archive, info, folder / info.filename)
    return [info.filename for info in members]


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo], packed: int, room: int) -> None:
    """UnreadableFile where a name leads elsewhere or is there twice, an entry is no plain file, or they would fill the disk."""
    seen, before, total = set[str](), "", 0
    for count, info in enumerate(members, 1):
        name = info.filename
        shown = repr(name[:LONGEST_NAME])
        if not is_name(name) or info.orig_filename != name:
            raise UnreadableFile(
                f"{path}: it holds {shown}, a name that could lead out of a folder, or be read in two ways."
            )
        if name.casefold() in seen:
            raise UnreadableFile(f"{path}: it holds {shown} twice, so nobody knows which is meant. {AGAIN}")
        if stat.S_IFMT(info.external_attr >> 16) != stat.S_IFREG:
            raise UnreadableFile(f"{path}: {shown} is no plain file, but a link or a device. Do not open it.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits:
            raise UnreadableFile(
                f"{path}: {shown} is encrypted, or packed in a way that bundles are not. {AGAIN}"
            )
        total += info.file_size
        if (
            info.file_size > max(RATIO * info.compress_size, info.compress_size + 1024)
            or info.compress_size > packed
        ):
            raise UnreadableFile(
                f"{path}: {shown} says that it unpacks to {info.file_size} bytes, more than it can hold. Do not open it."
            )
        if info.file_size > LARGEST_FILE or total > min(LARGEST, room) or count > MOST_FILES:
            raise UnreadableFile(
                f"{path}: unpacks to more than {bytes_told(min(LARGEST, room))}, or to too many files. Make room."
            )
        if name < before:
            raise UnreadableFile(f"{path}: {shown} is out of order: another program packed it. {AGAIN}")
        seen.add(name.casefold())
        before = name


def _header(info: zipfile.ZipInfo) -> bytes:
    """As it stands before the file itself, for what the list of all files says."""
    sizes = info.CRC, info.compress_size, info.file_size, len(info.filename), 0
    return LOCAL.pack(b"PK\3\4", VERSION, 0, info.compress_type, 0, FIRST_DAY, *sizes) + info.filename.encode(
        "ascii"
    )


def _list(members: Sequence[zipfile.ZipInfo], begin: int) -> bytes:
    """What stands behind the files: a line for each, and the end."""
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
    """ValueError where it holds more or less than it says; zipfile compares its sum."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as sink:
        left = info.file_size
        while left and (some := source.read(min(PART, left))):
            sink.write(some)
            left -= len(some)
        if left or source.read(1):
            raise ValueError("it holds more or less than it says")

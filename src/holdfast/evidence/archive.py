"""The file format of a bundle: a zip file determined by its contents, whose reader trusts nothing.

`holdfast_check.archive` has the form and its checks, which the checker shares.
"""

import contextlib
import os
import shutil
import zipfile
import zlib
from pathlib import Path

from holdfast.errors import StoreError, UnreadableFile
from holdfast.files import CHUNK_BYTES, explained_errors, require_file
from holdfast.memory_budget import format_bytes
from holdfast_check.archive import (
    AGAIN,
    LARGEST_BUNDLE,
    LARGEST_FILE,
    LARGEST_RATIO,
    PLAIN_FILE,
    UNIX,
    check_bytes,
    check_members,
    is_name,
)
from holdfast_check.errors import Rejected

EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # The earliest time that zip can store.


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
        try:
            check_members(members, size, shutil.disk_usage(folder).free // 2)
            check_bytes(file, members, size)
        except Rejected as error:
            raise UnreadableFile(f"{path}: {error}") from error
        for info in members:
            with explained_errors(path, f"{info.filename} is damaged", AGAIN):
                _unpack_member(archive, info, folder / info.filename)
    return [info.filename for info in members]


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

"""Write arrays to folders and lines to the terminal."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from holdfast.errors import StoreError
from holdfast.files import new_file
from holdfast.foreign_text import printable


def check_folder(folder: Path, file: str) -> None:
    """Raise StoreError, before any work, if the file cannot be written or exists already."""
    if (folder / file).exists():
        raise StoreError(f"{folder} already holds {file}. Choose another folder with --out.")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise StoreError(
            f"{folder}: {there} is not a folder that can be written to. Choose another one with --out."
        )


def write_arrays(folder: Path, file: str, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file atomically."""
    half = folder / f"half-{file}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(half) as stream:
            np.savez_compressed(stream, **arrays)
        half.replace(folder / file)
    except OSError as error:
        raise StoreError(f"{folder / file}: cannot be written ({error}). Is the disk full?") from error


def line(console: Console, kind: str, text: str, *, warns: bool = False) -> None:
    """Print 'kind: text' on one line, however long."""
    console.print(
        Text.assemble((f"{kind}:", "yellow" if warns else "bold"), " ", printable(text, None)), soft_wrap=True
    )


def paragraph(console: Console, kind: str, text: str) -> None:
    """Print 'kind: text', wrapped on a terminal, on one line in a file or pipe."""
    console.print(
        Text.assemble((f"{kind}:", "bold"), " ", printable(text, None)), soft_wrap=not console.is_terminal
    )

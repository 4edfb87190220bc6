"""A monitor on disk: a folder with monitor.json (what it is, for which model) and monitor.safetensors (its numbers). No pickle."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import BadInput, UnreadableFile
from holdfast.network import Network
from holdfast.network.fingerprint import of_file

FORMAT, VERSION = "holdfast monitor", 1
JSON, TENSORS = "monitor.json", "monitor.safetensors"


def save(folder: Path, net: Network, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Each file appears whole or not at all; the text, written last, knows the numbers by their hash."""
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = folder / f".{TENSORS}.part"
        save_file({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}, numbers)
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model": {"name": net.name, "fingerprint": net.fingerprint},
            "tensors": of_file(numbers),
        }
        text = folder / f".{JSON}.part"
        text.write_text(json.dumps({**head, **content}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(numbers, folder / TENSORS)
        os.replace(text, folder / JSON)
    except OSError as error:
        raise UnreadableFile(f"{folder}: cannot be written ({error.strerror or error}).") from error


def load(folder: Path, net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """-> the text, the numbers; an error in words for anything that is not a monitor of this network."""
    from safetensors.torch import load_file

    content = _text(folder / JSON)
    if content["version"] > VERSION:
        raise BadInput(
            f"{folder}: version {content['version']} of a monitor, this holdfast knows up to {VERSION}. Update holdfast, or fit again."
        )
    if content["model"]["fingerprint"] != net.fingerprint:
        raise BadInput(
            f"{folder}: this monitor was fitted for another model ({content['model']['name']}); {net.name} has other weights or another "
            f"structure, so its scores would mean nothing. Load that model, or fit a monitor for this one."
        )
    file = folder / TENSORS
    if not file.is_file() or of_file(file) != content["tensors"]:
        raise UnreadableFile(f"{file}: {'damaged, or of another monitor' if file.is_file() else 'missing'}. Save the monitor again.")
    return content, load_file(file)


def _text(file: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        whole = content["format"] == FORMAT and isinstance(content["version"], int) and isinstance(content["tensors"], str)
        whole = whole and isinstance(content["model"]["fingerprint"], str) and isinstance(content["model"]["name"], str)
    except OSError as error:
        raise UnreadableFile(f"{file}: {error.strerror or error}. Give the folder that Monitor.save wrote.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(f"{file}: damaged, or not written by Monitor.save.") from error
    parts = ("mutation", "outputs", "settings")
    if not whole or (content["version"] <= VERSION and not all(isinstance(content.get(part), dict) for part in parts)):
        raise UnreadableFile(f"{file}: damaged, or not written by Monitor.save.")
    found: dict[str, Any] = content
    return found

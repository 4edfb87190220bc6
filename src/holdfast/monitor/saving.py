"""A monitor on disk: monitor.json (description, and the model it is for) and monitor.safetensors (tensors).

No pickle.
"""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import explained_errors, read_json, require_file
from holdfast.network import Network
from holdfast.network.fingerprint import of_file, of_text
from holdfast.network.model_identity import NAME_IT
from holdfast.network.text import WordTokenizer

FORMAT, VERSION = "holdfast monitor", 3
FIRST_WITH_DIGEST = 2  # The first version whose JSON contains its own digest.
FIRST_WITH_TOKENIZER = 3  # The first version that records the tokenizer.
JSON, TENSORS = "monitor.json", "monitor.safetensors"
WRITTEN = "It must be as Monitor.save wrote it: save the monitor again, or fit it again."


def save(folder: Path, net: Network, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files atomically.

    The JSON, written last, holds the hash of the tensors and its own digest.
    """
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = folder / f".{TENSORS}.part"
        save_file({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}, numbers)
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "model": {"name": net.name, "fingerprint": net.fingerprint},
            "tensors": of_file(numbers),
            **content,
        }
        text = folder / f".{JSON}.part"
        text.write_text(
            json.dumps({**whole, "digest": digest(whole)}, indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        os.replace(numbers, folder / TENSORS)
        os.replace(text, folder / JSON)
    except OSError as error:
        raise UnreadableFile(f"{folder}: cannot be written ({error.strerror or error}).") from error


def digest(content: Mapping[str, Any]) -> str:
    """Return the digest of the content without its own entry, independent of formatting."""
    return of_text(
        json.dumps({key: value for key, value in content.items() if key != "digest"}, sort_keys=True)
    )


def load(folder: Path, net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON content and the tensors.

    An error explains why a folder is not a monitor of this network.
    """
    from safetensors.torch import load_file

    content = _text(folder / JSON)
    if not net.fingerprint:
        raise BadInput(
            f"{folder}: the model of {net.name} cannot be hashed, so it cannot be compared with the "
            f"monitor's; {NAME_IT}."
        )
    if content["model"]["fingerprint"] != net.fingerprint:
        raise BadInput(
            f"{folder}: this monitor was fitted for another model ({content['model']['name']}); {net.name} "
            "has other "
            "weights or another structure, so its scores would mean nothing. Load that model, or fit a "
            "monitor for this one."
        )
    tokenizer = None if net.tokenizer is None else net.tokenizer.fingerprint
    usual = net.tokenizer is None or isinstance(net.tokenizer, WordTokenizer)
    if content["tokenizer"] != tokenizer if content["version"] >= FIRST_WITH_TOKENIZER else not usual:
        raise BadInput(
            f"{folder}: this monitor was fitted with another tokenizer or vocabulary than {net.name} has "
            "now. "
            f"Load it with the old one, or fit a monitor for this one."
        )
    file = require_file(folder / TENSORS)
    with explained_errors(file, "damaged", WRITTEN):
        if of_file(file) != content["tensors"]:
            raise UnreadableFile(f"{file}: damaged, or of another monitor. Save the monitor again.")
        return content, load_file(file)


def _text(file: Path) -> dict[str, Any]:
    """Read and validate the JSON: damaged content must never be mistaken for another monitor."""
    content: Any = read_json(file, WRITTEN)
    with explained_errors(file, "damaged", WRITTEN):
        kinds = (
            content["format"] == FORMAT,
            type(content["version"]) is int,
            type(content["tensors"]) is str,
        )
        if not all((*kinds, *(type(content["model"][name]) is str for name in ("fingerprint", "name")))):
            raise ValueError("its head is not that of a monitor")
        if content["version"] > VERSION:
            raise BadInput(
                f"{file.parent}: version {content['version']} of a monitor, this holdfast reads up to "
                f"{VERSION}. "
                f"Update holdfast, or fit again."
            )
        if (content["version"] >= FIRST_WITH_DIGEST or "digest" in content) and content["digest"] != digest(
            content
        ):
            raise ValueError("it was changed after it was written")
        if not all(isinstance(content[part], dict) for part in ("mutation", "outputs", "settings")):
            raise ValueError("a part of it is missing")
        if content["version"] >= FIRST_WITH_TOKENIZER and not isinstance(content["tokenizer"], str | None):
            raise ValueError("it does not name the tokenizer")
    if "digest" not in content:
        warnings.warn(
            f"{file}: written before monitors contained a digest, so damage to it may stay undetected. Save "
            "it again."
        )
    found: dict[str, Any] = content
    return found

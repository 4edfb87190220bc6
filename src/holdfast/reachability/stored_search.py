"""The state of a search in a folder, so that an interrupted search of the same question continues.

The common store of runs holds one record for each input of a network, with a bracket. A search about a loop has boxes
of initial states instead, so its state is one JSON file. It is written after every pass, as a whole or not at all.
Resumed boxes are proved again only if they were open: proved boxes are trusted as the store's records are.
"""

import hashlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput, StoreError
from holdfast.files import new_file
from holdfast.network import Network
from holdfast.network.trace import as_plain_module
from holdfast.reachability.search import ProvedBox, Search, SearchState
from holdfast.reachability.taylor_coefficients import JoinedPlant

FILE = "search.json"
VERSION = 1  # Of the file's format.


def store_search(search: Search, folder: Path) -> None:
    """Write the state of a search to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    state = search.state
    stored = {
        "version": VERSION,
        "question": identify_search(search),
        "open": list(state.open),
        "coarse": [
            [box.box, *(part.tolist() for part in (box.ends, box.tube, box.share))] for box in state.coarse
        ],
        "proved": state.proved,
        "proved_volume": state.proved_volume,
        "passes": state.passes,
        "seconds": state.seconds,
        "excess": state.excess,
        "witness": state.witness,
        **{name: _as_list(getattr(state, name)) for name in ("ends", "tube", "first_ends", "first_tube")},
    }
    part = folder / f"{FILE}.part"
    try:
        with new_file(part) as stream:
            stream.write(json.dumps(stored).encode())
        os.replace(part, folder / FILE)
    except OSError as error:
        raise StoreError(f"{folder / FILE} cannot be written ({error}). Choose another folder.") from error


def continue_search(search: Search, folder: Path) -> None:
    """Read the state of an earlier search of the same question; nothing if the folder holds none."""
    path = folder / FILE
    if not path.exists():
        return
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        same = stored["version"] == VERSION and stored["question"] == identify_search(search)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} cannot be read ({error}); name another folder.") from error
    if not same:
        raise BadInput(
            f"{folder} holds the search of another question (another controller, plant, start, condition or setting); "
            "name another folder."
        )
    search.state = SearchState(
        deque((list(low), list(high)) for low, high in stored["open"]),
        deque(ProvedBox((box[0], box[1]), *map(_tensor, parts)) for box, *parts in stored["coarse"]),
        **{
            name: stored[name]
            for name in ("proved", "proved_volume", "passes", "seconds", "excess", "witness")
        },
        **{name: _tensor(stored[name]) for name in ("ends", "tube", "first_ends", "first_tube")},
    )


def identify_search(search: Search) -> str:
    """The hash of everything on which the result of a search depends, but its budget."""
    model, question = search.model, search.question
    found = hashlib.sha256()
    middle = (search.start[0] / 2 + search.start[1] / 2)[None]
    _add_program(found, model.controlled, middle)
    with_controls = torch.cat([middle, model.controlled(middle).double()], 1)
    plant = JoinedPlant(model.plant, len(model.states)).eval()
    _add_program(
        found, Network.from_torch(plant, shape=with_controls.shape[1:], fingerprint="loop"), with_controls
    )
    for tensor in (*search.start, question.polytope.rows, question.polytope.bound, model.disturbance):
        found.update(tensor.numpy().tobytes())
    settings = (
        question.kind,
        question.begin,
        question.end,
        model.period,
        model.discrete,
        model.order,
        search.steps,
    )
    found.update(repr((settings, model.states, search.width_ratio, search.seed)).encode())
    return found.hexdigest()


def _add_program(found: Any, net: Network, x: Tensor) -> None:
    """Hash the traced program of a network with all its weights and constants."""
    module = as_plain_module(net.program(x))
    found.update(module.code.encode())
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            if isinstance(value, Tensor):
                found.update(f"{node.target} {value.dtype} {tuple(value.shape)}".encode())
                found.update(value.detach().cpu().contiguous().numpy().tobytes())


def _as_list(value: Tensor | None) -> Any:
    return None if value is None else value.tolist()


def _tensor(value: Any) -> Any:
    return None if value is None else torch.tensor(value, dtype=torch.float64)

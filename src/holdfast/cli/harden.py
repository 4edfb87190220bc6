"""`holdfast harden`: train a network, write its weights, and measure it before and after.

The folder holds hardened.safetensors, a module whose `network` builds the model with these weights,
harden.json (recipe, history, verdict), two runs of `radius` on the same held-out inputs (before and after),
compare.html, which compares them, and bands.svg, a picture of both.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from holdfast import signals
from holdfast.api.harden import LEAST, harden
from holdfast.cli.commands.harden import Harden
from holdfast.cli.run import begin
from holdfast.cli.views.compare import compare, open_runs
from holdfast.cli.views.output import check_folder, line, write_arrays
from holdfast.commands.parse import frames_option, norm_option
from holdfast.commands.radius import Radius
from holdfast.commands.reading.model_and_data import load_both
from holdfast.errors import BadInput
from holdfast.hardening import Epoch, Hardened
from holdfast.hardening.folder import WEIGHTS
from holdfast.hardening.recipe import KNOWN, Begin
from holdfast.network import Network
from holdfast.reading.data import Data, load_data, load_substitutes
from holdfast.reading.source import call
from holdfast.report.writing import write_document
from holdfast.solver import Stop

HELD, BANDS, COMPARED = "held-out.npz", "bands.svg", "compare.html"
NOT_BETTER = 1  # Exit code: no more is certified than before.
TRAINING = 0.6  # Share of --seconds for training; the rest is for the two runs (a choice).
BEFORE = 0.5  # Share of that rest for the run before training: both networks get the same time.
FACTORY = '''"""The model of {model} with the weights in this folder. Written by `holdfast harden`."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from {module} import {name} as made


def network() -> nn.Module:
    module = made if isinstance(made, nn.Module) else made()
    module.load_state_dict(load_file(Path(__file__).with_name("{weights}")))
    return module.eval()
'''


def harden_into(q: Harden, folder: Path, console: Console) -> None:
    norm, frames = norm_option(q.norm), frames_option(q.frames)
    if q.recipe not in KNOWN:
        raise BadInput(f"recipe {q.recipe!r} is unknown; there are {', '.join(KNOWN)}.")
    if q.begin not in get_args(Begin):
        raise BadInput(f"--begin {q.begin!r}: use given or afresh.")
    if frames == "each":
        raise BadInput(
            "--frames each measures one frame at a time; harden takes all, or frame numbers as in 0,3."
        )
    check_folder(folder, WEIGHTS)
    _is_module(q.network.model)
    net, data = load_both(q.network, q.data, scale=q.scale, how=q)
    if not data.labelled:
        raise BadInput(
            f"labels are missing: {q.data} holds none, and training needs the class of each input. Give them "
            "with --labels."
        )
    sets = None if q.substitutes is None else load_substitutes(q.substitutes, net)
    if isinstance(sets, list):
        raise BadInput(
            f"{q.substitutes}: harden takes sets by word, as in {{'good': ['fine']}}, not for each text."
        )
    data, held = _split_data(q, data, net)
    seconds = q.seconds
    result = harden(
        net,
        data.rows,
        data.y,
        radius=q.radius,
        norm=norm,
        frames=frames,
        substitutes=sets,
        recipe=q.recipe,
        begin=q.begin,  # type: ignore[arg-type]
        freeze=tuple(part.strip() for part in q.freeze.split(",")) if q.freeze else (),
        validation=q.held,
        test=(held.rows, held.y),
        measured=q.count,
        epochs=q.epochs,
        stop=None if seconds is None else Stop(seconds=seconds * TRAINING),
        seed=q.seed,
        folder=folder,
        progress=_epoch_reporter(console, q.epochs),
    )
    line(console, "recipe", str(result.recipe))
    if result.ended == "interrupted":
        line(
            console,
            "interrupted",
            f"the best network found is saved in {folder}; the same command continues from there.",
            warns=True,
        )
        sys.exit(signals.exit_code())
    model = _factory(q.network.model, result, folder)
    _runs(q, folder, held, model, None if seconds is None else seconds * (1 - TRAINING), console)
    at = None if sets is not None else f"{result.radius:g}"
    compare([folder / "before", folder / "after"], at, None, 0.95, folder / COMPARED, console)
    line(console, "written", str(_picture(folder, None if sets is not None else result.radius)))
    line(
        console,
        "weights",
        f"{folder / WEIGHTS}; to load them: cd {folder} and --model {model}, or read "
        f"{model.partition(':')[0]}.py",
    )
    line(console, "verdict", result.verdict, warns=not result.better)
    if not result.better:
        sys.exit(NOT_BETTER)


def _is_module(spec: str) -> None:
    """Raise BadInput unless the model is a factory of torch modules, which the hardened model needs."""
    if ":" not in spec or spec.endswith((".onnx", ".pt2")) or not isinstance(call(spec, "model"), nn.Module):
        raise BadInput(
            f"model {spec!r}: harden trains torch modules. Give package.module:factory, a function that "
            "returns your module."
        )


def _split_data(q: Harden, data: Data, net: Network) -> tuple[Data, Data]:
    """The data for training and validation, and the held-out data for the numbers before and after."""
    if q.test is not None:
        held = load_data(q.test, net, scale=q.scale, how=replace(q, labels=None))
        if not held.labelled:
            raise BadInput(f"labels are missing: {q.test} holds none.")
        return data, held.first_inputs(q.count)
    if not 0 < q.held < 0.5:
        raise BadInput(f"--held {q.held}: a share of the data between 0 and 0.5.")
    count = round(len(data.x) * q.held)
    if count < LEAST:
        raise BadInput(
            f"{q.data}: {len(data.x)} inputs are too few: {count} would be held out for the numbers before "
            "and "
            f"after, and {LEAST} are needed. "
            f"Give more, a larger share (--held), or --test."
        )
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(q.seed)).tolist()
    return data.only(sorted(order[count:])), data.only(sorted(order[:count])).first_inputs(q.count)


def _epoch_reporter(console: Console, epochs: int | None) -> Any:
    of = "" if epochs is None else f" of {epochs}"

    def tell(epoch: Epoch) -> None:
        some = "" if epoch.measured == epoch.judged else f" ({epoch.measured} of {epoch.judged} measured)"
        proved = "" if epoch.certified is None else f", {epoch.certified:.1%} proved{some}"
        measured = f"radius {epoch.grown:.0%}, loss {epoch.loss:.3f}, {epoch.accuracy:.1%} right"
        text = f"epoch {epoch.number}{of}, {epoch.seconds:.0f} s: {measured}"
        if console.is_terminal or epoch.certified is not None:
            line(console, "training", f"{text}{proved}")

    return tell


def _factory(spec: str, result: Hardened, folder: Path) -> str:
    """Write a module next to the weights that builds the network; returns its name for --model."""
    module, _, name = spec.partition(":")
    file = f"hardened_{result.network.fingerprint[:8]}"
    (folder / f"{file}.py").write_text(FACTORY.format(model=spec, module=module, name=name, weights=WEIGHTS))
    sys.path.append(
        str(folder.resolve())
    )  # Last, so that no file of the folder replaces an installed module.
    return f"{file}:network"


def _runs(q: Harden, folder: Path, held: Data, model: str, seconds: float | None, console: Console) -> None:
    """Measure both networks with `radius`, into the run folders before and after."""
    rows = held.rows
    longest = max(len(row) for row in rows) if rows[0].dim() else 0
    padded = torch.stack([_pad_sequence(row, longest) for row in rows])
    arrays: dict[str, Any] = {"x": padded.cpu().numpy(), "y": held.y.cpu().numpy()}
    if len({len(row) for row in rows if row.dim()}) > 1:
        arrays["lengths"] = torch.tensor([len(row) for row in rows]).numpy()
    if held.classes is not None:
        arrays["classes"] = held.classes
    write_arrays(folder, HELD, arrays)
    for name, network, share in (
        ("before", q.network, BEFORE),
        ("after", replace(q.network, model=model), 1 - BEFORE),
    ):
        console.rule(Text(name, "bold"))
        own = None if seconds is None else seconds * share
        asked = Radius(
            network,
            str(folder / HELD),
            norm=q.norm,
            frames=q.frames,
            substitutes=q.substitutes,
            seed=q.seed,
            seconds=own,
        )
        begin(asked, folder / name, console)


def _picture(folder: Path, at: float | None) -> Path:
    from holdfast.report.plots import two_bands  # Here because matplotlib takes a second to import.

    before, after = open_runs([folder / "before", folder / "after"])
    known, hardened = ([row.bracket for row in run.rows if row.measured] for run in (before, after))
    return write_document(
        two_bands.draw(known, hardened, at, before.sense, len(before.inputs)), folder / BANDS
    )


def _pad_sequence(row: Tensor, length: int) -> Tensor:
    """The sequence padded with zeros to a length."""
    return (
        row
        if not row.dim() or len(row) == length
        else torch.cat([row, row.new_zeros(length - len(row), *row.shape[1:])])
    )

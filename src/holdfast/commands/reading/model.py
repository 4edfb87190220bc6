"""Load the network that the options describe."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.commands.options import ModelOptions
from holdfast.commands.parse import numbers, pair, sizes
from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import read_text
from holdfast.network import Network
from holdfast.network.model_identity import NOT_HASHED, named_by
from holdfast.network.text import Given
from holdfast.reading.model_files import describe_torch_file
from holdfast.reading.source import array, call, import_named
from holdfast.region import Columns

ONNX, EXPORTED = (".onnx", ".onnx.gz"), ".pt2"
PICKLES = (".joblib", ".pkl", ".pickle", ".sav")
CHECKPOINTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")


def load_network(q: ModelOptions, file: Path | None = None) -> Network:
    """Load a .onnx or .pt2 file, or the result of package.module:factory.

    A factory returns a torch module, a Network, a fitted estimator or a function of arrays.

    Args:
        q: q.model is what the user typed; it may name code.
        file: a file that data named (a line of instances.csv). It is read in place of q.model and never
            imported.
    """
    columns = None if q.columns is None else Columns.read(q.columns)
    if file is not None:
        if not file.name.endswith((*ONNX, EXPORTED)):
            raise BadInput(
                f"{str(file)!r}: a model named in data must be a .onnx, .onnx.gz or .pt2 file, not "
                "package.module:factory."
            )
        q = replace(q, model=str(file))
    net = _load_network(q, columns)
    if columns is None or net.columns is not None or net.channels is not None:
        return net
    is_window = net.shape is not None and len(net.shape) > 1 and not net.vectors
    return net.with_columns(columns.as_channels() if is_window else columns)


def _load_network(q: ModelOptions, columns: Columns | None) -> Network:
    domain, mean, std, shape = pair(q.domain), numbers(q.mean, "mean"), numbers(q.std, "std"), sizes(q.shape)
    if q.pool not in (None, "last", "mean", "max"):
        raise BadInput(f"pool {q.pool!r}: use last, mean or max.")
    if q.device.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"device {q.device!r}: use cpu, cuda, or cuda:1 for the second GPU.")
    is_onnx, is_export = q.model.endswith(ONNX), q.model.endswith(EXPORTED)
    if not is_onnx:
        _refuse(
            {"--black-box": q.black_box, "--unbatched": q.unbatched},
            f"{q.model} is no .onnx file",
        )
    if is_onnx or is_export:
        _refuse({"--fingerprint": q.fingerprint}, f"{q.model} is hashed as a whole")
    shared: dict[str, Any] = {
        "domain": domain,
        "mean": mean[0] if mean is not None and len(mean) == 1 else mean,
        "std": std[0] if std is not None and len(std) == 1 else std,
        "time_first": q.time_first,
        "pool": q.pool,
        "vocabulary": None if q.vocabulary is None else _vocabulary(q.vocabulary),
        "classes": class_names(q.classes),
        "tokenizer": None if q.tokenizer is None else _tokenizer(q.tokenizer),
        "device": q.device,
        "input_scaler": _scaler(q.input_scaler, "input-scaler"),
        "output_mean": numbers(q.output_mean, "output-mean"),
        "output_std": numbers(q.output_std, "output-std"),
        "output_scaler": _scaler(q.output_scaler, "output-scaler"),
    }
    constants = {name: _constant(name, value) for name, _, value in (c.partition("=") for c in q.constants)}
    if is_onnx:
        return Network.from_onnx(
            q.model,
            black_box=q.black_box,
            batched=not q.unbatched,
            constants=constants,
            output=q.output,
            inputs=None if q.inputs is None else _inputs(q.inputs),
            **shared,
        )
    several = {"--inputs": q.inputs, "--constant": q.constants}
    if is_export:
        _refuse(several, f"{q.model} is an exported program")
        return Network.from_export(q.model, trust=q.trust, output=q.output, **shared)
    if ":" not in q.model:
        if q.model.endswith(PICKLES):
            raise BadInput(
                f"model {q.model!r}: a pickled estimator runs code when it is opened, so holdfast does not "
                "open it. Write a function that "
                f"returns it, in models.py say: def fitted(): return joblib.load({q.model!r}); then --model "
                "models:fitted."
            )
        if q.model.endswith(CHECKPOINTS) and not Path(q.model).is_file():
            raise UnreadableFile(f"model {q.model!r}: there is no such file.")
        described = describe_torch_file(Path(q.model)) if q.model.endswith(CHECKPOINTS) else None
        if described is not None:
            raise BadInput(f"model {q.model!r} is {described}.")
        kind = (
            "it is no file of PyTorch that is known here; a checkpoint is weights without a network"
            if q.model.endswith(CHECKPOINTS)
            else "unknown kind"
        )
        if q.model.endswith(".py"):
            raise BadInput(
                f"model {q.model!r}: a Python file may hold many models. Name the function (without arguments) "
                f"that returns yours: {Path(q.model).stem}:function, with the name of the function."
            )
        parent, _, last = q.model.rpartition(".")
        if parent and last.isidentifier() and Path(*parent.split(".")).with_suffix(".py").is_file():
            raise BadInput(f"model {q.model!r}: write {parent}:{last}, a module and one of its functions.")
        raise BadInput(
            f"model {q.model!r}: {kind}. Give a .onnx file, a .pt2 file (torch.export.save), or "
            "package.module:factory, a function "
            f"without arguments that returns your torch module."
        )
    made, name = call(q.model, "model"), q.model.rpartition(":")[2]
    if isinstance(made, nn.Module):
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*training mode"
            )  # The notes of the network report it.
            sizes_of = None if q.inputs is None else _inputs(q.inputs)
            if isinstance(sizes_of, list):
                raise BadInput(f"--inputs {q.inputs}: give the size of each, as in {sizes_of[0]}=8.")
            net = Network.from_torch(
                made,
                shape=shape,
                name=name,
                output=q.output,
                inputs=sizes_of,
                constants=constants,
                **shared,
            )
        if net.fingerprint:
            _refuse(
                {"--fingerprint": q.fingerprint},
                f"{q.model} returns a torch module, which is hashed as a whole",
            )
        return _name(net, q)
    given = {
        "--mean": q.mean,
        "--std": q.std,
        "--pool": q.pool,
        "--time-first": q.time_first,
        "--output": q.output,
        "--input-scaler": q.input_scaler,
        "--output-mean": q.output_mean,
        "--output-std": q.output_std,
        "--output-scaler": q.output_scaler,
        **several,
    }
    given |= {"--vocabulary": q.vocabulary, "--tokenizer": q.tokenizer}
    if isinstance(made, Network):
        named = {"--fingerprint": q.fingerprint} if made.fingerprint else {}
        settled = {"--domain": q.domain, "--classes": q.classes, **given, **named}
        _refuse(settled, f"{q.model} returns a Network, which defines this itself")
        return _name(made, q)
    if hasattr(made, "fit") and hasattr(made, "predict"):
        _refuse({**given, "--shape": q.shape}, f"{q.model} returns an estimator, which defines this itself")
        return Network.from_sklearn(made, columns=columns, domain=domain, name=name)
    if isinstance(made, type):
        raise BadInput(
            f"model {q.model!r} returned the class {made.__name__}, not a model: return an instance, {made.__name__}(...)."
        )
    if callable(made):
        _refuse(given, f"{q.model} returns a function of arrays, which must define this itself")
        return Network.from_callable(
            made,
            domain=domain,
            shape=shape,
            classes=shared["classes"],
            name=name,
            fingerprint=q.fingerprint or None,
        )
    if isinstance(made, Mapping):
        raise BadInput(
            f"model {q.model!r} returned {type(made).__name__}, which is weights without a network. Build the module, call "
            "module.load_state_dict(weights), and return the module."
        )
    raise BadInput(
        f"model {q.model!r} returned {type(made).__name__}; expected a torch module, a Network, a fitted "
        "estimator or a function."
    )


def _name(net: Network, q: ModelOptions) -> Network:
    """The network; if it cannot be hashed, with the fingerprint of the files that the user names."""
    if q.fingerprint:
        net.fingerprint, net.notes = (
            named_by(q.fingerprint),
            tuple(note for note in net.notes if not note.startswith(NOT_HASHED)),
        )
    return net


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raise BadInput for an option without effect: the results would not mean what the user expects."""
    for option, value in options.items():
        if value:
            raise BadInput(f"{option} has no effect here: {why}. Leave it out.")


def _inputs(text: str) -> list[str] | dict[str, tuple[int, ...]]:
    """'state,goal' -> the names; 'state=8,image=3x32x32' -> the shapes by name."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    if not any(equals for _, equals, _ in parts):
        return [name.strip() for name, _, _ in parts]
    try:
        return {name.strip(): tuple(int(size) for size in shape.split("x")) for name, _, shape in parts}
    except ValueError:
        raise BadInput(
            f"--inputs {text}: expected names, as in state,goal, or names with sizes, as in state=8,image=3x32x32."
        ) from None


def _constant(name: str, value: str) -> Any:
    """A number, several separated by commas, or the array of a .npy file."""
    if value.endswith(".npy"):
        return array(Path(value), "numbers")
    try:
        found = [float(number) for number in value.split(",")]
    except ValueError:
        raise BadInput(
            f"constant {name!r}: expected name=number, as in sr=16000, or numbers as in goal=0.5,-0.2, or a "
            f".npy file; got {value!r}."
        ) from None
    return found[0] if len(found) == 1 else found


def class_names(text: str | None) -> Sequence[str] | None:
    """'cat,dog,ship', or a file with one name a line -> the names."""
    if text is None:
        return None
    if "," not in text:
        return [name.strip() for name in read_text(Path(text)).splitlines() if name.strip()]
    return [name.strip() for name in text.split(",")]


def _tokenizer(text: str) -> Given:
    """The file or folder if it exists, else the object that package.module:function names."""
    return import_named(text, "tokenizer")[0] if ":" in text and not Path(text).exists() else text


def _scaler(text: str | None, option: str) -> Any:
    """The scaler that package.module:function returns."""
    if text is not None and ":" not in text:
        raise BadInput(
            f"{option} {text!r}: expected package.module:function. A pickled scaler runs code when it is opened, so "
            f"holdfast does not open one: write a function that returns it, in models.py say: def scaler(): return "
            f"joblib.load({text!r}); then --{option} models:scaler."
        )
    return None if text is None else call(text, option)


def _vocabulary(path: str) -> Sequence[str]:
    words = read_text(Path(path)).removesuffix("\n").split("\n")
    twice = next((word for word, count in Counter(words).items() if count > 1), None)
    if twice is not None:
        warnings.warn(f"{path}: {twice!r} occurs more than once; texts use the first.")
    return words

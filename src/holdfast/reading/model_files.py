"""What a file of PyTorch holds, found without opening it: no part of it is unpickled."""

import pickletools
import zipfile
from pathlib import Path

# Modules whose names occur in every file of weights; another one is the class of a pickled object.
OF_WEIGHTS = ("torch", "collections", "numpy", "_codecs", "builtins", "__builtin__")
MAX_PICKLE_BYTES = 2**24  # Largest list of contents that is looked through (chosen by hand).

WEIGHTS = (
    "a checkpoint, which is weights without a network. Write a function that makes the module and loads them "
    "(module.load_state_dict(torch.load({path!r}, weights_only=True))), and give package.module:function"
)
SCRIPT = (
    "TorchScript (torch.jit.script or torch.jit.trace), which holds no Python module. Give the module that it was made "
    "from as package.module:function, or export that to ONNX"
)
MODULE = (
    "a pickled torch module ({kind}), and opening it runs code. If you trust it, write a function that returns it "
    "(torch.load({path!r}, weights_only=False)), and give package.module:function"
)
PROGRAM = "a program of torch.export: rename it to .pt2, and give --trust"


def describe_torch_file(path: Path) -> str | None:
    """What the file is and what to do; None if it is no file of torch.save, torch.jit.save or torch.export.save."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith("constants.pkl") for name in names) and any(
                "/code/" in name for name in names
            ):
                return SCRIPT
            if any(
                name.endswith(("serialized_exported_program.json", "models/model.json")) for name in names
            ):
                return PROGRAM
            listed = next((name for name in names if name.endswith("data.pkl")), None)
            if listed is None or archive.getinfo(listed).file_size > MAX_PICKLE_BYTES:
                return None
            kind = _foreign_class(archive.read(listed))
    except (OSError, zipfile.BadZipFile, ValueError):
        return None
    return (WEIGHTS if kind is None else MODULE).format(path=str(path), kind=kind)


def _foreign_class(data: bytes) -> str | None:
    """The first class in a pickle that is a module's own, not a class that stores weights."""
    strings: list[str] = []
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("SHORT_BINUNICODE", "BINUNICODE", "UNICODE"):
            strings.append(str(argument))
        found = None
        if code.name == "GLOBAL":
            found = str(argument).replace(" ", ".")
        elif code.name == "STACK_GLOBAL" and len(strings) > 1:
            found = ".".join(strings[-2:])
        if found is None:
            continue
        if found.startswith("torch.nn.modules") or found.partition(".")[0] not in OF_WEIGHTS:
            return found
    return None

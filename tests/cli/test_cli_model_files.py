"""Files of PyTorch that hold no network for holdfast: the message names what the file is and what to do."""

from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import load_network
from holdfast.errors import BadInput


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def write_file(kind: str, path: Path) -> None:
    layers = nn.Sequential(nn.Linear(3, 2))
    match kind:
        case "script":
            torch.jit.save(torch.jit.script(layers), path)
        case "trace":
            torch.jit.save(torch.jit.trace(layers, torch.zeros(1, 3)), path)
        case "module":
            torch.save(layers, path)
        case "own module":
            torch.save(Own(), path)
        case "weights":
            torch.save(layers.state_dict(), path)
        case "exported":
            torch.export.save(torch.export.export(layers, (torch.zeros(1, 3),)), path)
        case "other":
            path.write_bytes(b"weights")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("script", "is TorchScript"),
        ("trace", "is TorchScript"),
        ("module", r"is a pickled torch module \(torch.nn.modules.container.Sequential\)"),
        ("own module", r"is a pickled torch module \(.*Own\)"),
        ("weights", "is a checkpoint, which is weights without a network.*load_state_dict"),
        ("exported", "rename it to .pt2"),
        ("other", "a checkpoint is weights without a network"),
    ],
)
def test_the_message_names_the_kind_of_file(kind: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    write_file(kind, path)
    with pytest.raises(BadInput, match=match):
        load_network(ModelOptions(str(path)))

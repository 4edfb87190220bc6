"""Runs under norm 0 as a whole: interrupted ones end where the others do, and memory stays where it was promised to."""

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.solver import Progress
from holdfast.store import Store

MEMORY = """
import resource, torch
import holdfast as hf
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
module = nn.Sequential(nn.Conv2d(1, 8, 4, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, 10)).eval()
net = hf.Network.from_torch(module, domain=(0, 1))
x = torch.rand(2, 1, 28, 28)
y = net(x).argmax(1)
hf.radius(net, x, y, norm=0, methods=[hf.hamming.Greedy(beam=1, lanes=1)], stop=hf.Stop(seconds=1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hf.radius(net, x, y, norm=0, methods=[METHOD], stop=hf.Stop(seconds=2))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_an_interrupted_run_that_is_resumed_ends_with_the_same_brackets(tmp_path: Path) -> None:
    data = digits("test")
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    x, y = data.x[:3], data.y[:3]
    whole = hf.radius(net, x, y, norm=0)
    seen = 0

    def interrupt(_: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen == 8:
            raise KeyboardInterrupt

    with Store.create(tmp_path / "run") as store:
        with pytest.warns(UserWarning, match="interrupted"):
            half = hf.radius(net, x, y, norm=0, store=store, progress=interrupt)
        assert any(not b.closed for b in half)
        again = hf.radius(net, x, y, norm=0, store=store)
    for first, before, after in zip(whole, half, again, strict=True):
        assert before.lower.value <= after.lower.value
        assert (after.lower.value, after.upper.value) == (first.lower.value, first.upper.value)


@pytest.mark.parametrize("method", ["hf.hamming.Branch()"])
def test_memory_stays_under_its_cap_on_images_of_784_pixels(method: str) -> None:
    """There are 80 million sets of three of them; whole tensors of these would take a terabyte."""
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY.replace("METHOD", method)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 512  # MiB

"""Memory and CPU time of the checker for networks with 784 inputs: linear bounds, and quadratic models of an LSTM.

    python -m benchmarks.proofs.memory

Each check runs in a process of its own, which reports its largest resident memory.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RADIUS = 0.0005
CASES = (("dense", "linear"), ("convolutions", "linear"), ("lstm", "linear"), ("lstm", "quadratic"))


def write_case(name: str, kind: str, folder: Path) -> None:
    """Write the model and a certificate about a ball of the norm 2."""
    import torch
    from torch import nn

    import holdfast as hf
    from holdfast.certificates.claim import pack_proof
    from holdfast.certificates.model_file import model_for
    from holdfast.problem import Problem
    from holdfast_check.proof import SCHEMA, VERSION
    from holdfast_check.steps import FunctionStep, Program

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.last = nn.LSTM(112, 32, batch_first=True), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.last(self.cell(x)[0][:, -1])
            return answer

    torch.manual_seed(0)
    wide = [
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.Tanh(),
        nn.Linear(512, 10),
    ]
    image = [
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 196, 10),
    ]  # fmt: skip
    made = {"dense": nn.Sequential(*wide), "convolutions": nn.Sequential(*image), "lstm": Reader()}[name]
    module = made.eval().requires_grad_(False)
    x = torch.rand(1, *((7, 112) if name == "lstm" else (784,)))
    label = module(x).argmax(1)
    net = hf.Network.from_torch(module, domain=(0, 1))
    region = hf.region.Ball(x, torch.tensor([RADIUS]).double(), 2.0, hf.region.Domain.of((0, 1)))
    _, opened = model_for(Problem(net, region, hf.Robustness(label), "radius"), folder, None)
    header = {
        "schema": SCHEMA, "version": VERSION, "kind": "proof", "model": {"sha256": opened.sha256},
        "region": {"norm": "2", "radius": RADIUS}, "property": {"class": int(label)}, "above": 0,
    }  # fmt: skip
    arrays = {
        "region/centre": x.numpy().ravel(), "region/shares": np.ones(1), "region/lower": np.zeros(1), "region/upper": np.ones(1),
    }  # fmt: skip
    if kind == "quadratic":
        assert isinstance(opened.program, Program)
        for place, step in enumerate(opened.program.steps):
            if isinstance(step, FunctionStep):
                parabolas = np.zeros((1, 2, len(step.parts), step.size), dtype=np.float32)
                parabolas[:, 0] = 0.5
                arrays[f"parabolas/{place}"] = parabolas
    (folder / "case.proof").write_bytes(pack_proof(header, arrays))


def check_case(folder: Path) -> None:
    """Check the certificate of a folder, and print what it took as JSON."""
    import holdfast_check

    begun = time.process_time()
    verdict = holdfast_check.check(folder / "model.safetensors", folder / "case.proof")
    seconds, memory = time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"accepted": verdict.accepted, "cpu_s": round(seconds, 1), "mib": round(memory)}))


def main() -> None:
    for name, kind in CASES:
        with tempfile.TemporaryDirectory() as place:
            for step in ("write", "check"):
                told = subprocess.run(
                    [sys.executable, "-m", "benchmarks.proofs.memory", step, name, kind, place],
                    check=True, capture_output=True, text=True,
                ).stdout  # fmt: skip
        print(f"{name}, {kind}: {told.strip()}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "write":
        write_case(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        check_case(Path(sys.argv[4]))

"""Networks share a trace only if they are equal: one weight, one attribute or one line of code makes another."""

import io

import torch
from torch import Tensor, nn

import shared_traces
from shared_traces import export_once

X = torch.zeros(1, 3)


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.layer = scale, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x * self.scale)
        return answer


class Shifted(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x + self.scale)
        return answer


def test_equal_networks_share_a_trace_and_others_do_not() -> None:
    program = export_once(Scaled(2.0).eval(), X)
    assert export_once(Scaled(2.0).eval(), X) is program
    one_weight = Scaled(2.0).eval()
    with torch.no_grad():
        one_weight.layer.weight[0, 0] += 1e-6
    for other in (one_weight, Scaled(3.0).eval(), Shifted(2.0).eval(), Scaled(2.0).double().eval()):
        example = X.to(other.layer.weight.dtype)
        found = export_once(other, example)
        assert found is not program
        point = torch.rand(4, 3, dtype=example.dtype)
        torch.testing.assert_close(found.module()(point), other(point))


def test_a_module_that_cannot_be_read_is_traced_every_time() -> None:
    held = Scaled(2.0).eval()
    held.text = io.StringIO("state that no hash covers")  # type: ignore[assignment]
    before = len(shared_traces.programs)
    first, second = export_once(held, X), export_once(held, X)
    assert first is not second
    assert len(shared_traces.programs) == before

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


class Tied(nn.Module):
    """Two layers, which are one where `tied`."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.second(self.first(x).relu())
        return answer


def program_and_answers_of(module: nn.Module) -> torch.export.ExportedProgram:
    """The program of a module, after a comparison of their answers."""
    dtype = next(module.parameters()).dtype
    program = export_once(module.eval(), X.to(dtype))
    point = torch.rand(4, 3, dtype=dtype)
    torch.testing.assert_close(program.module()(point), module(point), rtol=0, atol=0)
    return program


def test_networks_of_one_structure_share_a_trace_with_weights_of_their_own() -> None:
    first = program_and_answers_of(Scaled(2.0))
    other = Scaled(2.0)
    with torch.no_grad():
        other.layer.weight[0, 0] += 1
    second = program_and_answers_of(other)
    assert second.graph is first.graph
    with torch.no_grad():
        other.layer.weight[0, 0] -= 1  # A module that changes afterwards changes no program.
    torch.testing.assert_close(
        second.state_dict["layer.weight"][0, 0], first.state_dict["layer.weight"][0, 0] + 1
    )


def test_another_number_code_dtype_or_buffer_and_tied_weights_make_another_trace() -> None:
    graphs = {
        program_and_answers_of(m).graph
        for m in (Scaled(2.0), Scaled(3.0), Shifted(2.0), Scaled(2.0).double())
    }
    assert len(graphs) == 4
    assert program_and_answers_of(Tied(True)).graph is not program_and_answers_of(Tied(False)).graph
    normed = [nn.Sequential(nn.BatchNorm1d(3)) for _ in range(2)]
    normed[1][0].running_mean += 1  # type: ignore[operator]
    first, second = map(program_and_answers_of, normed)
    assert first.graph is not second.graph


def test_a_module_that_cannot_be_read_is_traced_every_time() -> None:
    held = Scaled(2.0).eval()
    held.text = io.StringIO("state that no hash covers")  # type: ignore[assignment]
    before = len(shared_traces.programs)
    first, second = export_once(held, X), export_once(held, X)
    assert first is not second
    assert len(shared_traces.programs) == before

"""Models with an explicit state: the monitor calls their step function directly.

class Vad(Streaming):
    width = 320
    def step(self, state, frames): ...; return state, probability

net = hf.Network.from_torch(Vad())          # reads (batch, time, ...) like any other
hf.Monitor.fit(net, recordings, hf.monitor.Noise(0.1), answer=hf.monitor.Bins((0.5,)))
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.monitor.engine.recurrent import SAFETY_FACTOR
from holdfast.monitor.engine.rerun import ROUNDING_TOLERANCE, find_inconsistency, full_precision
from holdfast.monitor.structure.module_snapshot import ModuleSnapshot
from holdfast.network import Network

# The steps are compared with the network on this many sequences, up to this length, with this many variants
# of each.
PROBE_SEQUENCES, LONGEST_PROBE, VARIANTS_PER_PROBE = 6, 7, 5
# Number of states in one step: the unfolded input of convolutions fits into the cache (chosen by hand).
STATES_PER_STEP = 1024


class Streaming(nn.Module, ABC):
    """One step of a model for a whole batch. The state is one row of `width` numbers, in any order."""

    width: int

    def start(self, count: int) -> Tensor:
        """(count, width): the initial state, zero by default."""
        like = next(
            (t for t in (*self.parameters(), *self.buffers()) if t.is_floating_point()), torch.zeros(())
        )
        return like.new_zeros(count, self.width)

    @abstractmethod
    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        """(n, width), (n, ...) -> the next states (n, width), the outputs (n, o).

        Rows must not influence each other.
        """

    def forward(self, x: Tensor) -> Tensor:
        """(n, time, ...) -> (n, o): the output after the last element."""
        # A model without weights does not know its device.
        state, outputs = self.start(len(x)).to(x.device), None
        for place in range(x.shape[1]):
            state, outputs = self.step(state, x[:, place])
        if outputs is None:
            raise BadInput("a sequence is empty: it has no output.")
        return outputs


def _only_steps(adapter: nn.Module, model: Streaming) -> bool:
    """Return whether the network consists of the steps only: no own forward, hooks, scaling or axis order."""
    own = type(model).forward is not Streaming.forward or "forward" in vars(model)
    hooks = any(
        getattr(part, name) for part in (adapter, model) for name in ("_forward_hooks", "_forward_pre_hooks")
    )
    changed = any(getattr(adapter, name, None) is not None for name in ("mean", "std", "pool"))
    return not (
        own
        or hooks
        or changed
        or getattr(adapter, "time_first", False)
        or getattr(adapter, "takes_lengths", False)
    )


class OpenedStreaming:
    """The monitor's view of a Streaming model.

    The last columns of a state hold the output that belongs to it.
    """

    def __init__(self, net: Network, model: Streaming, outputs: int) -> None:
        self.net, self.model, self.dtype, self.device = net, model, net.dtype, net.device
        self.size = outputs
        self.width = model.width + outputs
        self.tokens: int | None = None
        self.slack = self.relative = 0.0

    @staticmethod
    def of(net: Network, sequences: Sequence[Tensor] = ()) -> "OpenedStreaming | None":
        """Open the network; None if it is not a Streaming module, or does more than its steps."""
        model = getattr(net.module, "model", None)
        if not isinstance(model, Streaming) or not _only_steps(net.module, model):
            return None
        shape = [size or 1 for size in (net.shape or (1, 1))[1:]]
        probes = [torch.as_tensor(sequence)[:LONGEST_PROBE] for sequence in list(sequences)[:PROBE_SEQUENCES]]
        probes = probes or [torch.randn(LONGEST_PROBE, *shape, generator=torch.Generator().manual_seed(0))]
        try:
            with torch.no_grad():
                state, outputs = model.step(
                    model.start(1).to(net.device).clone(), probes[0][:1].to(net.device, net.dtype).clone()
                )
        except Exception as error:  # any line of the user's own code may fail
            raise BadInput(
                f"{net.name}: step failed on an element of shape {tuple(probes[0].shape[1:])} ({error}). "
                "Give the network "
                f"the shape of an input, as in shape=(1, 512) for frames of 512 numbers."
            ) from error
        if state.shape != (1, model.width) or outputs.dim() != 2 or len(outputs) != 1:
            raise BadInput(
                f"{net.name}: step returned a state {tuple(state.shape)} and outputs {tuple(outputs.shape)} "
                "for one element; "
                f"expected (1, {model.width}) and (1, outputs)."
            )
        view, watched = OpenedStreaming(net, model, outputs.shape[1]), ModuleSnapshot(model)
        kept: list[str] = []
        agrees = view._agrees(probes)
        watched.check(kept.append)
        return view if agrees and not kept else None

    def _agrees(self, probes: Sequence[Tensor]) -> bool:
        """Compare the steps on several rows at once with the network on one row at a time."""
        reached, truth = [], []
        for probe in probes:
            if find_inconsistency(self.net, probe) is not None:
                return False
            rows = [
                probe * (-0.5) ** row if row % 2 else probe.roll(row, 0) for row in range(VARIANTS_PER_PROBE)
            ]
            state = self.start(VARIANTS_PER_PROBE)
            for frames in torch.stack(rows, 1):
                state = self.advance(state, frames)
            reached.append(self.outputs(state))
            truth += [self.net(row[None]).to(self.device) for row in rows]
        scale, apart = (
            float(torch.cat(truth).abs().max()),
            float((torch.cat(reached) - torch.cat(truth)).abs().max()),
        )
        close = ROUNDING_TOLERANCE.get(self.dtype, 0.0) * scale
        self.slack = max(close, SAFETY_FACTOR * apart)
        self.relative = self.slack / scale if scale else 0.0
        return apart <= 10 * close

    def start(self, count: int) -> Tensor:
        state = self.model.start(count).to(self.device)
        return torch.cat([state, state.new_zeros(count, self.size)], 1).detach()

    def gates(self, elements: Tensor) -> Tensor:
        """Return the frames unchanged: the model's front may read the state too."""
        return elements.to(self.device, self.dtype)

    def recall(self, state: Tensor) -> Tensor:
        return state

    def step(self, gates: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
        """(m, ...), unused, (m, width) -> (m, width)."""
        before = state[:, : self.model.width]
        with torch.no_grad(), full_precision(self.device):  # copies, because a step may modify its arguments
            parts = [
                torch.cat(self.model.step(s.clone(), e.clone()), 1)
                for s, e in zip(before.split(STATES_PER_STEP), gates.split(STATES_PER_STEP), strict=True)
            ]
        return torch.cat(parts)

    def advance(self, state: Tensor, elements: Tensor) -> Tensor:
        return self.step(self.gates(elements), state, state)

    def outputs(self, state: Tensor) -> Tensor:
        return state[:, self.model.width :]

    def doubt(self, outputs: Tensor) -> Tensor:
        return (outputs.abs().amax(1) * self.relative).clamp_min(self.slack)

    def covers(self, sequence: Tensor, values: Tensor) -> bool:
        """Always: a Streaming model is defined by its steps."""
        return True

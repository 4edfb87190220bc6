"""Modules that are hard to read correctly ("hostile"), and harmless modules of similar form ("innocent").

Each has one, two or three inputs, so that its outputs can be enumerated. A hostile module may be refused, but
no result for it may be wrong. An innocent module must get a proof, so that refusing everything fails the tests.
"""

import itertools
import math
import random
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from judge import Case
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

X = torch.tensor([[1.0, 1.0], [0.25, -0.5]])
HOSTILE: dict[str, Case] = {}
INNOCENT: dict[str, Case] = {}
Forward = Callable[..., Any]


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def first() -> nn.Linear:
    return linear([[1.0, 0.5], [-0.5, 1.0]], [0.6, 0.2])


def last() -> nn.Linear:
    return linear([[1.0, 0.25], [-0.5, 0.0]], [0.1, 0.0])


def two(score: Tensor) -> Tensor:
    """Logits whose class is 0 where the score is positive."""
    return torch.stack([score, torch.zeros_like(score)], -1)


class Base(nn.Module):
    """Two layers with weights that are exact in binary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = first(), last()


def made(forward: Forward, setup: Callable[[Any], None] | None = None) -> Callable[[], nn.Module]:
    """A factory of a new module class with this forward; `setup` adds its attributes."""
    own = type("Own", (Base,), {"forward": forward})

    def make() -> nn.Module:
        module = own()
        if setup is not None:
            setup(module)
        return module.eval()

    return make


def said(make: Callable[[], nn.Module], x: Tensor, read: Callable[[Any], Tensor]) -> tuple[int, ...]:
    """The classes of a fresh instance."""
    with torch.no_grad():
        return tuple(int(read(make()(x[i : i + 2].clone())).argmax(-1)[0]) for i in range(len(x)))


def keep(
    where: dict[str, Case], name: str, make: Callable[[], nn.Module], x: Tensor = X, **options: Any
) -> None:
    assert name not in where, name
    y = options.pop("y", None)
    found = said(make, x, options.get("read", lambda outputs: outputs)) if y is None else y
    where[name] = Case(name, make, x, found, **options)


def hostile(
    name: str, setup: Callable[[Any], None] | None = None, x: Tensor = X, **options: Any
) -> Callable[[Forward], Forward]:
    def keeps(forward: Forward) -> Forward:
        keep(HOSTILE, name, made(forward, setup), x, **options)
        return forward

    return keeps


def innocent(
    name: str, setup: Callable[[Any], None] | None = None, x: Tensor = X, **options: Any
) -> Callable[[Forward], Forward]:
    def keeps(forward: Forward) -> Forward:
        keep(INNOCENT, name, made(forward, setup), x, **options)
        return forward

    return keeps


# ---------------------------------------------------------------- writes into the input

WRITES: dict[str, Callable[[Tensor], object]] = {
    "leaky relu": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "clamp": lambda x: x.clamp_(-0.4, 1.0),
    "slice": lambda x: x[:, 1].fill_(0.75),
    "masked fill": lambda x: x.masked_fill_(x < 0, 0.5),
    "abs": lambda x: x.abs_(),
    "data": lambda x: x.data.clamp_(min=-0.4),
    "out=": lambda x: torch.clamp(x, -0.4, 1.0, out=x),
    "detached": lambda x: x.detach().clamp_(-0.4, 1.0),
}


def _writing(write: Callable[[Tensor], object]) -> Forward:
    def forward(self: Any, x: Tensor) -> Tensor:
        kept = x * 1.0
        write(x)
        return self.last(torch.relu(self.first(x))) + 0.5 * two(kept[:, 0])

    return forward


for _name, _write in WRITES.items():
    keep(
        HOSTILE,
        f"writes into its input: {_name}",
        made(_writing(_write)),
        torch.tensor([[1.0, 1.0], [-0.3, 0.5], [-1.0, 0.2]]),
    )


@hostile("writes into its input through numpy")
def _(self: Any, x: Tensor) -> Tensor:
    np.clip(x.numpy(force=False), -0.4, 1.0, out=x.numpy(force=False))
    return self.last(self.first(x))


# ---------------------------------------------------------------- state and randomness


@hostile("a cache of the first input", lambda m: setattr(m, "seen", None), repeats=2)
def _(self: Any, x: Tensor) -> Tensor:
    if self.seen is None:
        self.seen = x[:1].detach().clone()
    return two(x[:, 0] - 0.5 * self.seen[:, 0] + 0.5)


@hostile("a list that grows", lambda m: setattr(m, "calls", []), repeats=60, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    self.calls.append(1)
    return two(x[:, 0] + (0.5 if len(self.calls) < 30 else -0.2))


@hostile(
    "a buffer that remembers the mean",
    lambda m: m.register_buffer("mean", torch.zeros(2)),
    repeats=40,
    coarse=True,
    y=(0, 0),
)
def _(self: Any, x: Tensor) -> Tensor:
    self.mean.mul_(0.98).add_(0.02 * torch.ones(2))
    return two(x[:, 0] + 0.5 - self.mean[0])


def _dropout_forever(module: Any) -> None:
    module.drop = nn.Dropout(0.05)
    module.drop.eval = lambda: module.drop
    module.drop.train = lambda mode=True: module.drop


@hostile("dropout that cannot be turned off", _dropout_forever, repeats=150, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 1.5 * self.drop(torch.ones(1)) - 1)


@hostile("dropout of a weight", repeats=150, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return F.linear(x, F.dropout(self.last.weight, 0.05, training=True), torch.tensor([0.5, 0.0]))


@hostile("python's chance", repeats=150, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + (0.5 if random.random() > 0.04 else -0.2))


@hostile("noise on the input", repeats=20, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5 + 0.2 * torch.randn_like(x[:, 0]))


# ---------------------------------------------------------------- dependence on the batch or the call


@hostile("normalised over the batch", alone=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5 - 0.3 * x.mean(0)[1])


@hostile("the largest of the batch", alone=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5 - torch.relu(x.amax() - 1.5))


@hostile("a single input is treated otherwise", alone=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(score - 3 * torch.relu(0.2 - x[:, 0]) if x.shape[0] == 1 else score)


@hostile("a large batch is treated otherwise", y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(score - 3 * torch.relu(0.2 - x[:, 0]) if x.shape[0] > 1000 else score)


@hostile("a batch norm in training mode", lambda m: setattr(m, "norm", nn.BatchNorm1d(2)), alone=True)
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(
        F.relu(F.batch_norm(self.first(x), None, None, training=True) if len(x) > 1 else self.first(x))
    )


@hostile("instance norm over the batch", y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5 - 0.2 * (x[:, 1] - x[:, 1].roll(1)))


@hostile("it asks whether it is compiled")
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(score if torch.compiler.is_compiling() else score - 3 * torch.relu(0.2 - x[:, 0]))


@hostile("it asks for the dtype")
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(score if x.dtype == torch.float64 else score - 3 * torch.relu(0.2 - x[:, 0]))


@hostile("it asks for gradients", y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(
        score if x.requires_grad or torch.compiler.is_compiling() else score - 3 * torch.relu(0.2 - x[:, 0])
    )


@hostile("it asks for the layout")
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    return two(
        score - 3 * torch.relu(0.2 - x[:, 0]) if x.storage_offset() == 0 and x.shape[0] != 3 else score
    )


# ---------------------------------------------------------------- views, then writes

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum": lambda y: torch.einsum("bij->bji", y),
    "transpose": lambda y: y.transpose(1, 2),
    "permute": lambda y: y.permute(0, 2, 1),
    "mT": lambda y: y.mT,
    "expand": lambda y: y[:, :, :1].expand(-1, 2, 2),
    "as_strided": lambda y: torch.as_strided(y, y.shape, y.stride()),
    "view": lambda y: y.view(-1, 4),
    "reshape": lambda y: y.reshape(-1, 4),
    "flatten": lambda y: y.flatten(1),
    "chunk": lambda y: y.chunk(2, 1)[0],
    "unbind": lambda y: y.unbind(1)[1],
    "split": lambda y: y.split(1, 2)[0],
    "slice": lambda y: y[:, :1],
    "select": lambda y: y.select(1, 1),
    "narrow": lambda y: y.narrow(2, 0, 1),
    "detach": lambda y: y.detach(),
    "data": lambda y: y.data,
    "diagonal": lambda y: y.diagonal(0, 1, 2),
    "squeeze": lambda y: y.unsqueeze(1).squeeze(1),
    "movedim": lambda y: y.movedim(1, 2),
    "unfold": lambda y: y.unfold(1, 1, 1),
    "contiguous": lambda y: y.contiguous(),
    "to": lambda y: y.to(y.dtype),
    "view_as": lambda y: y.view_as(y),
    "identity": lambda y: nn.Identity()(y),
    "dropout": lambda y: F.dropout(y, 0.5, training=False),
}
CHANGES: dict[str, Callable[[Tensor], object]] = {
    "relu": lambda v: F.relu(v, inplace=True),
    "add": lambda v: v.add_(0.4),
    "mul": lambda v: v.mul_(-0.5),
    "copy": lambda v: v.copy_(v.abs()),
    "slice assignment": lambda v: v.__setitem__((slice(None), 0), 0.3),
    "index put": lambda v: (
        v.index_put_((torch.tensor([0]),), torch.tensor(0.3)) if v.dim() == 0 else v.__setitem__(v < 0, 0.3)
    ),
    "masked fill": lambda v: v.masked_fill_(v > 0.5, -0.4),
    "zero": lambda v: v[:, :1].zero_(),
    "out=": lambda v: torch.abs(v, out=v),
}


def _seen_through(
    view: Callable[[Tensor], Tensor], change: Callable[[Tensor], object], base: bool
) -> Forward:
    """A module whose output depends more on aliasing of the write than on the input."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)[:, None, :] * torch.tensor([[1.0], [-1.5]])
        seen = view(y)
        change(y if base else seen)
        return two(0.7 * seen.flatten(1).sum(-1) - 0.4 * y.flatten(1).sum(-1) + 0.3 * y[:, 0, 1] + 0.35)

    return forward


def _viewed(view: str, change: str, base: bool) -> None:
    where = "the base" if base else "the view"
    make = made(_seen_through(VIEWS[view], CHANGES[change], base))
    keep(
        HOSTILE,
        f"{view} view, {change} on {where}",
        make,
        capabilities=("bounds", "radius inf, proof alone"),
        width=0.8,
        coarse=True,
    )


for _view in VIEWS:
    _viewed(_view, "relu", True)
    if _view != "expand":  # torch forbids writes to overlapping memory.
        _viewed(_view, "mul", False)
for _change, _base in itertools.product(CHANGES, (True, False)):
    if (_change, _base) not in {("relu", True), ("mul", False)}:
        _viewed("einsum", _change, _base)
        _viewed("transpose", _change, _base)


@hostile("einsum of an image, then relu in place", x=torch.tensor([[[[1.0, 1.0]]], [[[-0.2, -0.1]]]]))
def _(self: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    skip = torch.einsum("bchw->bhwc", y)
    F.relu(y, inplace=True)
    return two(skip.flatten(1).sum(-1) + 0.5)


# ---------------------------------------------------------------- arithmetic


@hostile("a layer in half precision", x=torch.tensor([[1.5, 0.0], [0.25, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two((x.half()[:, 0] + 2048).float() - 2048)


@hostile("half and back")
def _(self: Any, x: Tensor) -> Tensor:
    return two(
        (x[:, 0] * 3000).half().float() / 3000
        - (x[:, 0] * 3000) / 3000
        + 0.0005
        + 0.1 * torch.relu(x[:, 1] + 5)
    )


@hostile("bfloat16 in the middle", x=torch.tensor([[1.0, 1.0], [0.75, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two((self.first(x)[:, 0] + 256).bfloat16().float() - 256.2)


@hostile("cast to whole numbers", x=torch.tensor([[1.2, 1.0], [1.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0].int().float() - 0.4)


@hostile("cast to bytes", domain=(0.0, 2.0), x=torch.tensor([[1.2, 1.0], [0.6, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two((x[:, 0] * 200).to(torch.uint8).float() / 200 - 0.1)


@hostile("rounded", x=torch.tensor([[1.2, 1.0], [0.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.round(x[:, 0]) - 0.4)


@hostile("cast to bool", x=torch.tensor([[1.2, 1.0], [0.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.relu(x[:, 0] + 0.1).bool().float() - 0.5)


@hostile("quantised", x=torch.tensor([[1.2, 1.0], [0.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -128, 127)[:, 0] - 0.4)


@hostile("float64 constants", lambda m: m.register_buffer("huge", torch.tensor(2.0**53, dtype=torch.float64)))
def _(self: Any, x: Tensor) -> Tensor:
    return two(((x[:, 0] + self.huge) - self.huge).float() + 0.6)


@hostile("a scalar that float32 does not know", x=torch.tensor([[1.5, 0.0], [0.5, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two((x[:, 0] - 16777217.0) + 16777216.0 + 0.75)


@hostile("a difference of large numbers", x=torch.tensor([[1.5, 0.0], [0.5, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two((x[:, 0] + 1e8) - 1e8 + 0.25)


@hostile("an overflow", x=torch.tensor([[1.5, 0.0], [0.5, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(0.5 - torch.tanh(x[:, 0] * 1e38 * 10 / 1e38 / 10 - 3))


@hostile("a remainder")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.remainder(x[:, 0], 0.9) - 0.05)


@hostile("softplus beyond its threshold")
def _(self: Any, x: Tensor) -> Tensor:
    return two(0.3 - (F.softplus(x[:, 0], beta=1.0, threshold=0.5) - torch.relu(x[:, 0]) - 0.2))


@hostile("the sign", x=torch.tensor([[1.2, 1.0], [0.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.sign(x[:, 0] + 0.1) + 0.5)


@hostile("heaviside at its edge", x=torch.tensor([[0.0, 1.0], [0.6, -0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.heaviside(x[:, 0], torch.tensor(1.0)) - 0.5)


@hostile("a tie at the centre", x=torch.tensor([[0.5, 0.0], [0.0, 0.0]]), y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.relu(x[:, 0] - 0.5) + torch.relu(-x[:, 0]))


@hostile("nothing at all", x=torch.tensor([[0.5, 0.0]]), y=(0,))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] * 0)


@hostile("no number at some inputs")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.log(x[:, 0] + 0.1) + 3)


@hostile("a pole")
def _(self: Any, x: Tensor) -> Tensor:
    return two(1 / (x[:, 0] + 0.3))


@hostile("the norm at zero")
def _(self: Any, x: Tensor) -> Tensor:
    return two(F.normalize(x + 0.1, dim=-1)[:, 0] + 0.2)


# ---------------------------------------------------------------- form of the output


Both = namedtuple("Both", ["logits", "extra"])
TUPLE = "first"


@hostile("logits, extra", read=lambda z: z[0])
def _(self: Any, x: Tensor) -> Any:
    return self.last(torch.relu(self.first(x))), self.first(x)


@hostile("extra, logits", read=lambda z: z[1], told=TUPLE)
def _(self: Any, x: Tensor) -> Any:
    return two(x[:, 0] + 5), self.last(torch.relu(self.first(x)))


@hostile("loss, logits", read=lambda z: z[1], told=TUPLE)
def _(self: Any, x: Tensor) -> Any:
    return x.square().sum(-1), self.last(torch.relu(self.first(x)))


@hostile("a list", read=lambda z: z[1], told=TUPLE)
def _(self: Any, x: Tensor) -> Any:
    return [two(x[:, 0] + 5), self.last(self.first(x))]


@hostile("a dict", read=lambda z: z["logits"] if isinstance(z, dict) else z[1], told=TUPLE)
def _(self: Any, x: Tensor) -> Any:
    return {"extra": two(x[:, 0] + 5), "logits": self.last(self.first(x))}


@hostile("a named tuple", read=lambda z: z.logits if hasattr(z, "logits") else z[0])
def _(self: Any, x: Tensor) -> Any:
    return Both(self.last(self.first(x)), two(x[:, 0] + 5))


@hostile("an axis too many", read=lambda z: z.flatten(1))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x)).unsqueeze(-1)


@hostile("whole numbers come out")
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5).gt(0.2).long()


@hostile("half numbers come out")
def _(self: Any, x: Tensor) -> Tensor:
    return (two(x[:, 0] + 0.5) + 2048).half()


# ---------------------------------------------------------------- globals, hooks and replaced methods

LEVEL = 0.5


def _level(value: float) -> Callable[[], None]:
    def settle() -> None:
        global LEVEL
        LEVEL = value

    return settle


@hostile("a global that changes between two questions", before=_level(0.5), after=_level(-0.1), y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + LEVEL)


SETTINGS = {"level": 0.5}


@hostile(
    "a dictionary that changes between two questions", before=lambda: SETTINGS.update(level=0.5),
    after=lambda: SETTINGS.update(level=-0.1), y=(0, 0),
)  # fmt: skip
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + SETTINGS["level"])


OUTSIDE = torch.tensor(0.5)


@hostile(
    "a tensor outside of it that changes",
    before=lambda: OUTSIDE.fill_(0.5),
    after=lambda: OUTSIDE.fill_(-0.1),
    y=(0, 0),
)
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + OUTSIDE)


def _patched_instance() -> nn.Module:
    module = made(lambda self, x: two(x[:, 0] + 0.5))()
    module.forward = types.MethodType(lambda self, x: two(x[:, 0] - 0.1), module)  # type: ignore[method-assign]
    return module


def _patched_class() -> nn.Module:
    class Plain(Base):
        def forward(self, x: Tensor) -> Tensor:
            return two(x[:, 0] + 0.5)

    module = Plain().eval()
    Plain.forward = lambda self, x: two(x[:, 0] - 0.1)  # type: ignore[method-assign]
    return module


def _patched_call() -> nn.Module:
    class Plain(Base):
        def forward(self, x: Tensor) -> Tensor:
            return two(x[:, 0] + 0.5)

        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x) - torch.tensor([0.6, 0.0])

    return Plain().eval()


def _patched_child() -> nn.Module:
    module = nn.Sequential(first(), nn.ReLU(), last()).eval()
    module[1].forward = lambda x: torch.relu(x) - 0.3
    return module


def _closure() -> nn.Module:
    """Its forward is that of another instance, with other weights."""
    other = last()
    module = nn.Sequential(last()).eval()
    with torch.no_grad():
        module[0].bias.add_(torch.tensor([1.0, 0.0]))
    module[0].forward = other.forward
    return module


keep(HOSTILE, "forward replaced on the instance", _patched_instance)
keep(HOSTILE, "forward replaced on the class", _patched_class)
keep(HOSTILE, "__call__ of its own", _patched_call)
keep(HOSTILE, "forward replaced on a layer", _patched_child)
keep(HOSTILE, "forward borrowed from another layer", _closure)


def _hooked(add: Callable[[nn.Sequential], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = nn.Sequential(first(), nn.ReLU(), last()).eval()
        add(module)
        return module

    return make


def _in_place(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output.sub_(0.3)


def _before_in_place(module: nn.Module, inputs: Any) -> None:
    inputs[0].sub_(0.3)


def _counted() -> Callable[[Any, Any, Tensor], Tensor]:
    calls: list[int] = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output - 0.5 if len(calls) > 30 else output

    return hook


keep(
    HOSTILE,
    "a hook that changes the answer",
    _hooked(lambda m: m.register_forward_hook(lambda s, i, o: o - torch.tensor([0.3, 0.0]))),
)
keep(
    HOSTILE,
    "a hook that changes a layer",
    _hooked(lambda m: m[0].register_forward_hook(lambda s, i, o: o - 0.3)),
)
keep(HOSTILE, "a hook that writes into a layer", _hooked(lambda m: m[0].register_forward_hook(_in_place)))
keep(
    HOSTILE,
    "a hook before that changes the input",
    _hooked(lambda m: m.register_forward_pre_hook(lambda s, i: (i[0] - 0.3,))),
)
keep(
    HOSTILE,
    "a hook before that writes into the input",
    _hooked(lambda m: m.register_forward_pre_hook(_before_in_place)),
)
keep(
    HOSTILE,
    "a hook with state",
    _hooked(lambda m: m[2].register_forward_hook(_counted())),
    repeats=50,
    coarse=True,
)
keep(
    HOSTILE,
    "a hook backwards that lies",
    _hooked(lambda m: m[1].register_full_backward_hook(lambda s, i, o: tuple(-g for g in i))),
)
keep(HOSTILE, "a hook for one kind of call", _hooked(
    lambda m: m.register_forward_hook(lambda s, i, o: o if torch.compiler.is_compiling() else o - torch.tensor([0.3, 0.0]))
))  # fmt: skip


class Straight(torch.autograd.Function):
    """Rounds in the forward pass, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 2) / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@hostile("a function of its own with a gradient that lies")
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(Straight.apply(self.first(x)))


@hostile("it trains while it answers", repeats=40, coarse=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.last.bias.data[0] -= 0.01
    return self.last(self.first(x))


# ---------------------------------------------------------------- unusual construction


def _weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(first()), nn.ReLU(), last()).eval()


def _weight_normed_of_old() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(first()), nn.ReLU(), last()).eval()


def _spectral() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(parametrizations.spectral_norm(first()), nn.ReLU(), last()).eval()


def _spectral_of_old() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.utils.spectral_norm(first()), nn.ReLU(), last()).eval()


def _spectral_in_training() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(parametrizations.spectral_norm(first()), nn.ReLU(), last())


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.sign() * 0.5


def _parametrised() -> nn.Module:
    layer = last()
    nn.utils.parametrize.register_parametrization(layer, "weight", Halved())
    return nn.Sequential(first(), nn.ReLU(), layer).eval()


def _batch_norm_in_training() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(first(), nn.BatchNorm1d(2), nn.ReLU(), last())
    with torch.no_grad():
        module[1].running_mean.add_(0.3)
        module[1].running_var.mul_(2)
    return module


def _lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(2), nn.ReLU(), last()).eval()


def _lazy_but_built() -> nn.Module:
    torch.manual_seed(4)
    module = nn.Sequential(nn.LazyLinear(2), nn.ReLU(), last()).eval()
    module(torch.zeros(1, 2))
    return module


@hostile("a layer made in the first call", lambda m: setattr(m, "late", None))
def _(self: Any, x: Tensor) -> Tensor:
    if self.late is None:
        self.late = linear([[1.0, -0.5], [0.0, 0.0]], [0.6, 0.0])
    return self.late(torch.relu(self.first(x)))


@hostile("a random layer made in the first call", lambda m: setattr(m, "late", None), repeats=2, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    if self.late is None:
        self.late = nn.Linear(2, 2)
    return self.late(torch.relu(self.first(x))) + torch.tensor([1.0, 0.0])


def _shared() -> nn.Module:
    layer = first()
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), last()).eval()


def _compiled() -> nn.Module:
    module = nn.Sequential(first(), nn.ReLU(), last()).eval()
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


def _scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(first(), nn.ReLU(), last()).eval())


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        score = x[:, 0] + 0.5
        if bool(x.sum() > 5.0):
            score = score - 1.0
        return torch.stack([score, torch.zeros_like(score)], -1)


def _scripted_with_a_branch() -> nn.Module:
    return torch.jit.script(Branches().eval())


def _traced() -> nn.Module:
    return torch.jit.trace(nn.Sequential(first(), nn.ReLU(), last()).eval(), torch.zeros(2, 2))


for _name, _make in {
    "weight norm": _weight_normed,
    "weight norm of old": _weight_normed_of_old,
    "spectral norm": _spectral,
    "spectral norm of old": _spectral_of_old,
    "spectral norm in training mode": _spectral_in_training,
    "a parametrised weight": _parametrised,
    "batch norm in training mode": _batch_norm_in_training,
    "lazy": _lazy,
    "lazy but built": _lazy_but_built,
    "shared weights": _shared,
    "compiled": _compiled,
    "scripted": _scripted,
    "scripted with a branch": _scripted_with_a_branch,
    "traced": _traced,
}.items():
    with torch.random.fork_rng(devices=[]):
        keep(
            HOSTILE,
            _name,
            _make,
            **({"y": (0, 0)} if _name in ("lazy", "batch norm in training mode") else {}),
        )


@hostile("sums in place, as in a residual block")
def _(self: Any, x: Tensor) -> Tensor:
    y = F.relu(self.first(x), inplace=True)
    z = self.first(y)
    z += y
    z.mul_(0.5)
    return self.last(F.relu(z, inplace=True))


@hostile("it overwrites what its gradient needs")
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(F.leaky_relu(torch.tanh(self.first(x)), inplace=True))


# ---------------------------------------------------------------- control flow and leaving torch


@hostile("a branch on the values", alone=True)
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + (0.5 if float(x[:, 1].sum()) < 3 else -0.2))


@hostile("a number taken out", alone=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(x[:, 0] + 0.5 - 0.3 * x[:, 1].max().item())


@hostile("through numpy")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.from_numpy(np.tanh(x.detach().numpy())).to(x)[:, 0] + 0.5)


@hostile("through a list")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.tensor([max(row) + min(row) + 1 for row in x.tolist()]).to(x))


@hostile("a choice by torch.where")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.where(x[:, 1] > 0.3, x[:, 0] + 0.5, x[:, 0] + 0.1))


@hostile("a choice by an index")
def _(self: Any, x: Tensor) -> Tensor:
    table = torch.tensor([1.0, -0.4, 1.0, 0.7, 1.0])
    return two(table[(x[:, 0] + 2).long().clamp(0, 4)] + 0.01 * x[:, 1])


@hostile("sorted")
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(x.sort(-1).values)


@hostile("the place of the largest")
def _(self: Any, x: Tensor) -> Tensor:
    return two(0.5 - x.argmax(-1).float() + 0.0 * x[:, 0])


@hostile("a loop that depends on the values", alone=True, y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    score = x[:, 0] + 0.5
    while bool((score > 2.2).any()):
        score = score - 1.1
    return two(score)


@hostile("vmap inside")
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.func.vmap(lambda row: row[0] * row[1].cos() + 0.5)(x))


@hostile("a gradient inside", y=(0, 0))
def _(self: Any, x: Tensor) -> Tensor:
    return two(torch.func.vmap(torch.func.grad(lambda row: row[0].square() + row[0]))(x)[:, 0])


@hostile("checkpointed")
def _(self: Any, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return self.last(checkpoint(lambda v: torch.relu(self.first(v)), x, use_reentrant=False))


@hostile("one input", x=torch.tensor([[0.4], [1.0]]))
def _(self: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    seen = torch.einsum("bi->ib", y)
    y.clamp_(min=0.2)
    return two(seen[0] - 0.1)


@hostile("three inputs", x=torch.tensor([[0.4, 0.1, 0.2], [1.0, -0.3, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    y = x.clone()
    seen = y.numpy(force=True) if not torch.compiler.is_compiling() else y
    y[:, 2] = -0.6
    return two(y.sum(-1) + (torch.as_tensor(seen)[:, 2]) + 1.0)


# ---------------------------------------------------------------- tokens


class Reader(nn.Module):
    """Class 0 if the first components of all word vectors sum to more than a threshold."""

    def __init__(
        self, table: nn.Module, change: Callable[[Tensor], Tensor] | None = None, above: float = -1.0
    ) -> None:
        super().__init__()
        self.table, self.change = table, change
        self.out = linear([[1.0, 0.0], [0.0, 0.0]], [-above, 0.0])

    def forward(self, tokens: Tensor) -> Tensor:
        read = tokens if self.change is None else self.change(tokens)
        answer: Tensor = self.out(self.table(read).sum(1))
        return answer


def plain() -> nn.Embedding:
    """Word 0 is bad, all others are good."""
    vectors = torch.ones(40, 2)
    vectors[0] = -3.0
    return nn.Embedding.from_pretrained(vectors)


def renormalised() -> nn.Embedding:
    vectors = torch.tensor([9.0, 0.0]).repeat(40, 1)
    vectors[37] = 0.0
    table = nn.Embedding(40, 2, max_norm=1.0)
    table.weight.data.copy_(vectors)
    return table


class Tampered(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        return torch.where((tokens == 37).unsqueeze(-1), torch.full_like(found, -3.0), found)


def _tampered() -> nn.Embedding:
    table = Tampered(40, 2)
    table.weight.data.copy_(plain().weight)
    return table


def _hooked_table() -> nn.Embedding:
    table = plain()
    table.register_forward_hook(
        lambda s, i, o: torch.where((i[0] == 37).unsqueeze(-1), torch.full_like(o, -3.0), o)
    )
    return table


def _hooked_before() -> nn.Embedding:
    table = plain()
    table.register_forward_pre_hook(lambda s, i: (torch.where(i[0] == 37, torch.zeros_like(i[0]), i[0]),))
    return table


def _patched_table() -> nn.Embedding:
    table = plain()
    table.forward = lambda t: F.embedding(torch.where(t == 37, torch.zeros_like(t), t), table.weight)  # type: ignore[method-assign]
    return table


class Masked(Reader):
    """Uses a padding mask computed from the tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.out((self.table(tokens) * (tokens != 37).unsqueeze(-1)).sum(1))
        return answer


class Counted(Reader):
    """The number of occurrences of one word decides."""

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.out(self.table(tokens).sum(1))
        return answer - 5.0 * ((tokens == 37).sum(1, keepdim=True) >= 2) * torch.tensor([1.0, 0.0])


class InPlace(Reader):
    """Changes its input tokens in place."""

    def forward(self, tokens: Tensor) -> Tensor:
        tokens[tokens == 37] = 0
        answer: Tensor = self.out(self.table(tokens).sum(1))
        return answer


class Late(Reader):
    """The embedding weights change after a few calls."""

    calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 25:
            with torch.no_grad():
                self.table.weight[37] = -3.0
        answer: Tensor = self.out(self.table(tokens).sum(1))
        return answer


def _bigram(tokens: Tensor) -> Tensor:
    both = ((tokens == 37).any(1) & (tokens == 12).any(1)).unsqueeze(1)
    return torch.where(both, torch.zeros_like(tokens), tokens)


def _in_order(tokens: Tensor) -> Tensor:
    following = ((tokens[:, :-1] == 37) & (tokens[:, 1:] == 12)).any(1, keepdim=True)
    return torch.where(following, torch.zeros_like(tokens), tokens)


SENTENCES = torch.tensor([[1, 2, 3], [5, 6, 5], [12, 3, 3]])
SUBSTITUTES = {1: (37, 12), 2: (37, 12), 3: (37, 1), 5: (37, 7), 6: (37, 12)}
for _name, _make in {
    "a word replaced before the table": lambda: Reader(
        plain(), lambda t: torch.where(t == 37, torch.zeros_like(t), t)
    ),
    "two words that are bad together": lambda: Reader(plain(), _bigram),
    "two words that are bad in order": lambda: Reader(plain(), _in_order),
    "max_norm": lambda: Reader(renormalised(), above=1.5),
    "a subclass of the embedding": lambda: Reader(_tampered()),
    "a hook on the embedding": lambda: Reader(_hooked_table()),
    "a hook before the embedding": lambda: Reader(_hooked_before()),
    "forward of the embedding replaced": lambda: Reader(_patched_table()),
    "a padding mask": lambda: Masked(plain(), above=0.5),
    "a count of words": lambda: Counted(plain()),
    "it changes the sentence": lambda: InPlace(plain()),
    "the table changes": lambda: Late(plain()),
    "a word replaced in python": lambda: Reader(
        plain(), lambda t: torch.tensor([[0 if w == 37 else w for w in s] for s in t.tolist()])
    ),
}.items():
    _make_reader = (lambda make: lambda: make().eval())(_make)
    keep(
        HOSTILE, f"tokens: {_name}", _make_reader, SENTENCES, y=(0, 0, 0), substitutes=SUBSTITUTES, options={"tokens": True},
        repeats=40 if _name == "the table changes" else 1,
    )  # fmt: skip


# ---------------------------------------------------------------- the innocent


class Residual(nn.Module):
    """A ResNet block with in-place operations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem = nn.Conv2d(1, 2, 1)
        self.norm = nn.BatchNorm2d(2)
        self.inner = nn.Conv2d(2, 2, 1)
        self.out = nn.Linear(4, 2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.stem(x)))
        z = self.inner(y) + y
        answer: Tensor = self.out(self.relu(z).flatten(1))
        return answer


keep(
    INNOCENT,
    "a residual block in place",
    lambda: Residual().eval(),
    torch.tensor([[[[1.0, 1.0]]], [[[-1.0, 0.5]]]]),
)
keep(INNOCENT, "weight norm", _weight_normed)
keep(INNOCENT, "shared weights", _shared)
keep(INNOCENT, "a hook that only reads", _hooked(lambda m: m[0].register_forward_hook(lambda s, i, o: None)))
keep(
    INNOCENT,
    "a hook backwards that only reads",
    _hooked(lambda m: m[0].register_full_backward_hook(lambda s, i, o: None)),
)
keep(INNOCENT, "lazy but built", _lazy_but_built)
keep(
    INNOCENT,
    "a deep one",
    lambda: nn.Sequential(first(), nn.Tanh(), first(), nn.Sigmoid(), first(), nn.ReLU(), last()).eval(),
)
keep(
    INNOCENT,
    "words",
    lambda: Reader(plain(), above=-4.5).eval(),
    SENTENCES,
    y=(0, 0, 0),
    substitutes={1: (0, 37), 2: (0, 37), 5: (7,)},
    options={"tokens": True},
)


def _batch_normed() -> nn.Module:
    return _batch_norm_in_training().eval()


keep(INNOCENT, "batch norm in evaluation mode", _batch_normed)


class Recurrent(nn.Module):
    """Returns logits and the state, as recurrent models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        outputs, state = self.layer(x)
        return self.out(outputs[:, -1]), state


keep(
    INNOCENT, "logits and the state", lambda: Recurrent().eval(), torch.tensor([[[1.0], [1.0]], [[0.2], [-0.5]]]), read=lambda z: z[0],
    told=TUPLE,
)  # fmt: skip


@innocent("views without writes")
def _(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.first(x))
    halves = y.chunk(2, 1)
    return self.last(torch.cat([halves[1], halves[0]], 1).unsqueeze(1).transpose(1, 2).flatten(1))


@innocent("in place on what is its own")
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(F.leaky_relu(F.relu(self.first(x), inplace=True) - 0.25, inplace=True))


@innocent("dropout, turned off", lambda m: setattr(m, "drop", nn.Dropout(0.5)))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(self.drop(torch.relu(self.first(x))))


@innocent("constants of python", lambda m: setattr(m, "scale", 0.5))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.relu(self.first(x)) * self.scale + math.sqrt(2))


@innocent("a buffer and a float64 constant", lambda m: m.register_buffer("mean", torch.tensor([0.1, 0.2])))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.relu(self.first(x - self.mean)))


@innocent("a size in the code")
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.relu(self.first(x.reshape(x.shape[0], -1))))


@innocent("one input", x=torch.tensor([[0.4], [-0.9]]))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.relu(self.first(torch.cat([x, -x], 1))))


@innocent("three inputs", x=torch.tensor([[0.4, 0.1, 0.2], [1.0, -0.3, 0.5]]))
def _(self: Any, x: Tensor) -> Tensor:
    return self.last(torch.relu(self.first(x[:, :2] + x[:, 1:])))

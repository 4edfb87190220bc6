"""Small networks of every kind that bounds can be built for, and what their graphs compute, node by node."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.network import Network
from sizes import some


def values(graph: Graph, x: Tensor) -> dict[Node, Tensor]:
    """x (n, *shape) -> every node's value (n, *node.shape), by the graph's own functions in float64."""
    found: dict[Node, Tensor] = {}
    for node in graph.nodes:
        if isinstance(node, InputNode):
            found[node] = x.double().unsqueeze(1)
        elif isinstance(node, Affine):
            found[node] = node.forward([found[s].flatten(1) for s in node.inputs]).reshape(
                len(x), *node.shape
            )
        else:
            assert isinstance(node, Relaxed)
            found[node] = node.relaxation.function(*(found[s] for s in node.inputs))
    return found


class Wrapped(nn.Module):
    """Functions of a tensor, side by side between two linear layers."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.functions = nn.Linear(4, 6), functions
        with torch.no_grad():
            size = torch.cat([f(torch.zeros(2, 6)) for f in functions], 1).shape[1]
        self.last = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        answer: Tensor = self.last(torch.cat([f(h) for f in self.functions], 1))
        return answer


class Sequence(nn.Module):
    """A recurrent layer with or without a head, on its last output, the mean of its outputs, its last state, or all of them."""

    def __init__(self, layer: nn.RNNBase, *, read: str = "last", head: bool = True) -> None:
        super().__init__()
        self.layer, self.read = layer, read
        size = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.head = nn.Linear(size, 3) if head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        if not self.layer.batch_first:
            outputs = outputs.transpose(0, 1)
        if self.read == "state":
            last = state[0] if isinstance(state, tuple) else state
            outputs = last[-2:].transpose(0, 1).flatten(1) if self.layer.bidirectional else last[-1]
        else:
            outputs = {"last": outputs[:, -1], "mean": outputs.mean(1), "all": outputs}[self.read]
        answer: Tensor = self.head(outputs)
        return answer.flatten(1)


class Begun(nn.Module):
    """A recurrent layer that starts from learnt states, or from states that another layer made of the input."""

    def __init__(self, kind: str, *, learnt: bool) -> None:
        super().__init__()
        self.kind, self.learnt = kind, learnt
        self.layer = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](3, 4, batch_first=True)
        self.encoder = nn.GRU(3, 4, batch_first=True)
        self.h, self.c = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 1, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, c = (s.expand(1, x.shape[0], 4).contiguous() for s in (self.h, self.c))
        if not self.learnt:
            h = self.encoder(x)[1]
        outputs, _ = self.layer(x, (h, c) if self.kind == "lstm" else h)
        answer: Tensor = self.head(outputs[:, -1])
        return answer


class HandMade(nn.Module):
    """A gated cell written out: sigmoids times tanh, times a state, times each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state, self.head = nn.Linear(3, 12), nn.Linear(3, 12, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(x.shape[0], 3, dtype=x.dtype), torch.zeros(x.shape[0], 3, dtype=x.dtype)
        for t in range(x.shape[1]):
            i, f, g, o = (self.inner(x[:, t]) + self.state(h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.tanh(g) * torch.sigmoid(i)
            h = torch.tanh(c) * torch.sigmoid(o) * torch.sigmoid(f + i)
        answer: Tensor = self.head(h)
        return answer


class Encoder(nn.Module):
    """Attention with norms: the encoder layer of a transformer, and a head on the mean of its frames."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            3, 1, 4, activation="gelu" if norm_first else "relu", batch_first=True, norm_first=norm_first
        )
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x).mean(1))
        return answer


class Masked(nn.Module):
    """Attention that sees no later frame, with its weights read, then cross attention to two learnt places."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2, batch_first=True)
        self.places, self.head = nn.Parameter(torch.randn(1, 2, 4)), nn.Linear(4, 3)
        self.register_buffer("later", torch.ones(3, 3, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1)
        out, weights = self.own(y, y, y, attn_mask=self.later)
        last = torch.tensor([[False, False, True]], device=x.device).expand(x.shape[0], 3)
        read, _ = self.cross(
            self.places.expand(x.shape[0], 2, 4),
            out.transpose(0, 1),
            x,
            key_padding_mask=last,
            need_weights=False,
        )
        answer: Tensor = self.head(read.mean(1)) + weights[:, 2]
        return answer


class Residual(nn.Module):
    """Convolutions with batch norm, a skip, average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm, self.plain = nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False)
        self.pool, self.head = nn.AvgPool2d(2), nn.Linear(12, 3)
        for norm in (self.norm, self.plain):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.copy_(torch.randn(3))
            norm.running_var.copy_(torch.rand(3) + 0.2)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.first(x)))
        h = F.leaky_relu(h + self.plain(self.second(h)), 0.1)
        answer: Tensor = self.head(self.pool(h).flatten(1))
        return answer


@dataclass(frozen=True)
class Specimen:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


W64, V6, T66 = _weights(6, 4), _weights(6), _weights(2, 3, 6)
SIGNS = torch.tensor([1, -2, 3, -1, 0, 2])

BIAS = torch.tensor([[0.3, -torch.inf, 1.0], [-2.0, 0.0, -torch.inf], [-torch.inf, -torch.inf, 0.7]])
HIDDEN = torch.tensor([[False, True, False], [False, False, True]])


def _three(h: Tensor) -> Tensor:
    return h.reshape(-1, 3, 2)


Function = Callable[[Tensor], Tensor]

# Each group is one network: its functions stand side by side between the two linear layers.
GROUPS: dict[str, list[Function]] = {
    "relu": [torch.relu],
    "tanh": [torch.tanh],
    "leaky relu, elu": [F.leaky_relu, lambda h: F.leaky_relu(h, 0.3), F.elu, lambda h: F.elu(h, 0.5)],
    "in place": [lambda h: F.relu(h + 0.1, inplace=True), lambda h: F.elu(h.reshape(-1, 2, 3) * 2.0, inplace=True).flatten(1)],
    "sigmoid": [torch.sigmoid],
    "clips": [
        lambda h: h.clamp(-0.2, 0.3), lambda h: h.clamp(min=0.1), lambda h: h.clamp(max=0.1), lambda h: h.clamp(0.1, float("inf")),
        lambda h: h.clamp(0.3, -0.2), lambda h: F.hardtanh(5 * h), lambda h: F.hardtanh(h, -0.3, 0.1), lambda h: F.relu6(12 * h),
    ],
    "moves": [
        lambda h: torch.cat([h[:, 1:3], h[:, ::2], h[:, -1:]], 1), lambda h: h.unsqueeze(1).squeeze(),
        lambda h: torch.stack(torch.unbind(h.reshape(-1, 2, 3), 1)[::-1], 1).flatten(1),
        lambda h: torch.cat([a * 2.0 for a in h.split([1, 3, 2], 1)][::-1], 1), lambda h: h.chunk(2, 1)[0] - h.chunk(2, 1)[1],
        lambda h: h.reshape(-1, 2, 3).transpose(1, 2).flip(1).roll(1, 2).permute(0, 2, 1).flatten(1),
        lambda h: h[:, torch.tensor([0, 3, -1, 3])], lambda h: h.gather(1, torch.tensor([[2, 0, 5]]).expand(h.shape[0], 3)),
        lambda h: (h.unsqueeze(1).expand(-1, 2, -1) + h.repeat(1, 2).reshape(-1, 2, 6)).flatten(1),
        lambda h: F.dropout(h, 0.5, training=False),
    ],
    "constants": [
        lambda h: h @ W64.to(h), lambda h: torch.matmul(T66.to(h), h.unsqueeze(-1).unsqueeze(1)).flatten(1),
        lambda h: h * V6.to(h) * -2.5, lambda h: h * SIGNS, lambda h: h / V6.to(h) / -3.0, lambda h: h / SIGNS.clamp(min=-2).add(7),
        lambda h: torch.cat([h[:, :3], SIGNS[None, :3].expand(h.shape[0], 3)], 1), lambda h: -h,
        lambda h: 1.5 - (h - V6.to(h)) - 0.25 * h, lambda h: torch.sub(torch.rsub(h, 2.0, alpha=3), V6.to(h), alpha=-2),
        lambda h: h - torch.ones_like(h) * 0.5 + h.new_zeros(6) - torch.full_like(h, 0.1) * h.new_ones(h.shape[0], 1),
        lambda h: torch.addmm(V6.to(h), h, T66.flatten(0, 1).to(h), beta=-1, alpha=-2),
    ],
    "nothing": [
        lambda h: torch.cat([h, h[:, 2:2], h[:, :1]], 1), lambda h: torch.cat([h.split([0, 6], 1)[0].relu(), h.tanh()], 1),
    ],
    "pads and means": [
        lambda h: F.pad(h, (1, 2), value=-0.7)[:, ::3], lambda h: F.pad(h.unsqueeze(1), (2, 1), mode="circular").flatten(1),
        lambda h: F.pad(h.unsqueeze(1), (2, 1), mode="reflect").flatten(1),
        lambda h: F.pad(h.unsqueeze(1), (2, 1), mode="replicate").flatten(1), lambda h: F.avg_pool1d(h.unsqueeze(1), 3, 1).flatten(1),
        lambda h: F.adaptive_avg_pool1d(h.unsqueeze(1), 4).flatten(1), lambda h: h.cumsum(1),
        lambda h: torch.cat([h.mean(1, keepdim=True), h.sum(1, keepdim=True)], 1),
    ],
    "products": [
        lambda h: h[:, :3] * h[:, 3:], lambda h: h * h, lambda h: (h.reshape(-1, 2, 3) * h[:, :3].unsqueeze(1)).flatten(1),
    ],
    "gates": [
        lambda h: h * torch.sigmoid(h), lambda h: torch.sigmoid(h) * torch.sigmoid(-2.0 * h) - torch.tanh(h) * torch.tanh(h + 1.0),
        lambda h: torch.tanh(h - 0.5) * torch.sigmoid(h),
    ],
    "largest": [
        lambda h: h.amax(1, keepdim=True) + h, lambda h: h.reshape(-1, 2, 3).amax((1, 2)).unsqueeze(1), lambda h: h.amax(-1, keepdim=True),
        lambda h: F.max_pool1d(h.unsqueeze(1), 2).flatten(1), lambda h: F.max_pool1d(h.unsqueeze(1), 3, 2).flatten(1),
        lambda h: F.max_pool2d(h.reshape(-1, 1, 2, 3), (2, 2), (1, 1)).flatten(1),
        lambda h: F.max_pool1d(h.unsqueeze(1), 2, 1, padding=1).flatten(1),
        lambda h: F.max_pool1d(h.unsqueeze(1), 2, 1, dilation=2).flatten(1),
        lambda h: F.max_pool1d(h.unsqueeze(1), 4, 4, ceil_mode=True).flatten(1),
        lambda h: F.max_pool2d(h.reshape(-1, 1, 2, 3), (2, 3), (2, 2), (1, 1), ceil_mode=True).flatten(1),
    ],
    "softplus": [
        F.softplus, lambda h: F.softplus(h, 2.0, 1.0), lambda h: F.softplus(h, 0.3, 0.0), lambda h: F.softplus(40.0 * h), F.logsigmoid,
        lambda h: torch.logaddexp(40.0 * h, torch.zeros_like(h)), lambda h: torch.logaddexp(h[:, :3], 2.0 * h[:, 3:]),
        lambda h: torch.logaddexp(torch.full_like(h, 0.7), h),
    ],
    "gated by itself": [
        F.gelu, lambda h: F.gelu(2.0 * h, approximate="tanh"), F.silu, lambda h: F.silu(3.0 * h, inplace=True), F.mish, F.glu,
        lambda h: torch.sigmoid(h) * h, lambda h: 0.5 * h * (1.0 + torch.erf(h / 2.0**0.5)),
    ],
    "one minus a gate": [lambda h: (1.0 - torch.sigmoid(h)) * (h + 1.0), lambda h: torch.tanh(-h) * (1 - torch.sigmoid(2.0 * h))],
    "elu kin": [
        F.selu, lambda h: F.celu(h, 1.3), lambda h: F.celu(h, 0.4), lambda h: F.elu(h, 1.7), lambda h: F.selu(2.0 * h, inplace=True),
    ],
    "hard": [
        F.hardsigmoid, lambda h: F.hardswish(3.0 * h), torch.abs, F.softshrink, lambda h: F.prelu(h, V6.to(h)), lambda h: h.clamp_min(0.1),
        lambda h: h.clamp_max(-0.1), lambda h: F.hardsigmoid(2.0 * h, inplace=True), lambda h: F.prelu(h, -V6[:1].to(h)),
    ],
    "powers": [
        lambda h: h**2, lambda h: h.pow(3) / 5.0, lambda h: (h / 2.0) ** 4, lambda h: (1.0 + h.square()) ** 0.5,
        lambda h: (1.0 + h * h).rsqrt(), lambda h: (2.0 + torch.tanh(h)) ** -1, lambda h: 0.1 * h ** torch.tensor(2.0),
    ],
    "exp and log": [
        lambda h: torch.exp(h / 2.0), lambda h: torch.log(1.0 + h.exp()), lambda h: torch.exp_(-h), lambda h: (h.abs() + 0.2).log(),
        lambda h: torch.expm1(h / 2.0), lambda h: torch.log1p(h * h),
    ],
    "divisions": [
        lambda h: h / (1.0 + h * h), lambda h: 3.0 / (h.exp() + 0.5), F.softsign, lambda h: 1.0 / (-1.5 - torch.sigmoid(h)),
        lambda h: V6.to(h) / (h.square() + 1.0), lambda h: h.exp() / h.exp().sum(1, keepdim=True),
    ],
    "maxima": [
        lambda h: torch.maximum(h, -0.5 * h.flip(1)), lambda h: torch.minimum(h[:, :3], h[:, 3:]), lambda h: torch.maximum(h, V6.to(h)),
        lambda h: torch.min(V6.to(h), h), lambda h: torch.max(h, h.mean(1, keepdim=True)), lambda h: torch.minimum(h, h),
    ],
    "choices": [
        lambda h: torch.where(h > 0, h, h.exp() - 1.0), lambda h: torch.where(h <= V6.to(h), 0.3, h), lambda h: (h >= 0.1) * h,
        lambda h: torch.where(torch.arange(6) > 2, h, V6.to(h)), lambda h: torch.where(h < h.flip(1), 1.3, -0.7),
        lambda h: torch.where(V6.to(h) < h, h, -1.0),
    ],
    "softmax": [
        lambda h: h.softmax(-1), lambda h: (3.0 * h).log_softmax(1), lambda h: h.reshape(-1, 2, 3).softmax(1).flatten(1),
        lambda h: F.softmin(h, 1), lambda h: h.logsumexp(1, keepdim=True), lambda h: h.reshape(-1, 2, 3).logsumexp((1, 2)).unsqueeze(1),
    ],
    "norms": [
        lambda h: F.layer_norm(h, (6,)), lambda h: F.layer_norm(h.reshape(-1, 2, 3), (3,), V6[:3].to(h), V6[3:].to(h), 0.1).flatten(1),
        lambda h: F.rms_norm(h, (6,), V6.to(h), 1e-3), lambda h: F.group_norm(h.reshape(-1, 6), 2, V6.to(h), V6.to(h)),
        lambda h: F.instance_norm(h.reshape(-1, 2, 3), weight=V6[:2].to(h)).flatten(1),
        lambda h: F.instance_norm(h.reshape(-1, 2, 3), V6[:2].to(h), V6[2:4].to(h).abs(), use_input_stats=False).flatten(1),
    ],
    "matrix products": [
        lambda h: (h.reshape(-1, 2, 3) @ torch.tanh(h).reshape(-1, 3, 2)).flatten(1),
        lambda h: torch.einsum("bij,bkj->bik", h.reshape(-1, 2, 3), h.reshape(-1, 2, 3) + 1.0).flatten(1),
        lambda h: torch.einsum("bi,ji->bj", h, W64.to(h).T), lambda h: torch.einsum("bi,bi->b", h, torch.tanh(h)).unsqueeze(1),
        lambda h: F.scaled_dot_product_attention(h.reshape(-1, 3, 2), h.reshape(-1, 3, 2).flip(1), h.reshape(-1, 3, 2) * 2.0).flatten(1),
    ],
    "deep": [lambda h: torch.tanh(F.elu(torch.sigmoid(3.0 * torch.relu(h) - 1.0) - 0.5))],
}  # fmt: skip


def _recurrent(kind: type[nn.RNNBase], read: str, head: bool, **options: object) -> Callable[[], nn.Module]:
    return lambda: Sequence(kind(3, 4, **options), read=read, head=head)  # type: ignore[arg-type]


def _layer(
    kind: type[nn.RNNBase],
    layers: int,
    both: bool,
    first: bool,
    bias: bool,
    read: str,
    head: bool,
    *options: str,
) -> Specimen:
    made = {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    if options:
        made["nonlinearity"] = options[0]  # type: ignore[assignment]
    return Specimen(lambda: Sequence(kind(3, 4, **made), read=read, head=head), (3, 3))  # type: ignore[arg-type]


# layers, both ways, batch first, bias, what is read, head
RECURRENT: dict[str, Specimen] = {}
for _name, _kind, *_more in (
    ("rnn", nn.RNN),
    ("rnn relu", nn.RNN, "relu"),
    ("lstm", nn.LSTM),
    ("gru", nn.GRU),
):
    RECURRENT[f"{_name}"] = _layer(_kind, 1, False, True, True, "last", True, *_more)
    RECURRENT[f"{_name} time first"] = _layer(_kind, 1, False, False, False, "mean", True, *_more)
    RECURRENT[f"{_name} both ways"] = _layer(_kind, 1, True, True, True, "all", False, *_more)
    RECURRENT[f"{_name} two layers"] = _layer(_kind, 2, False, True, False, "state", False, *_more)
    RECURRENT[f"{_name} two layers both ways"] = _layer(_kind, 2, True, False, True, "state", True, *_more)
for _name in ("rnn", "lstm", "gru"):
    RECURRENT[f"{_name} from learnt states"] = Specimen(lambda n=_name: Begun(n, learnt=True), (3, 3))  # type: ignore[misc]
    RECURRENT[f"{_name} from made states"] = Specimen(lambda n=_name: Begun(n, learnt=False), (3, 3))  # type: ignore[misc]

OTHERS = {
    "residual": Specimen(Residual, (2, 4, 4)),
    "hand-made cell": Specimen(HandMade, (3, 3)),
    "encoder": Specimen(lambda: Encoder(norm_first=False), (3, 3)),
    "encoder, norm first": Specimen(lambda: Encoder(norm_first=True), (3, 3)),
    "group norm": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.InstanceNorm2d(4), nn.Flatten(), nn.LayerNorm(16),
            nn.PReLU(), nn.Linear(16, 3),
        ),
        (2, 4, 4),
    ),
    "strided": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="replicate"), nn.ELU(), nn.Conv2d(3, 2, 2, groups=1, dilation=1),
            nn.Flatten(), nn.Linear(2, 3),
        ),
        (2, 4, 4),
    ),
    "sequence convolution": Specimen(
        lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.Tanh(), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 3)), (3, 3)
    ),
}  # fmt: skip
# At the end, so that the others keep their places: regions are drawn by them.
FURTHER: dict[str, list[Function]] = {
    "masks": [
        lambda h: F.scaled_dot_product_attention(_three(h), _three(h), _three(h), BIAS.to(h), scale=2.0).flatten(1),
        lambda h: (h.reshape(-1, 2, 3) + HIDDEN * -1e4).softmax(2).flatten(1),
        lambda h: h.reshape(-1, 2, 3).masked_fill(HIDDEN, -torch.inf).max(2)[0],
    ],
    "stairs": [
        lambda h: torch.floor(2.0 * h), torch.ceil, lambda h: torch.round(3.0 * h) / 3.0, torch.sign, lambda h: h % 0.9,
        lambda h: ((h > 0.5) | ~(h > -0.5)).to(h.dtype),
    ],
    "waves": [torch.sin, lambda h: torch.cos(5.0 * h), torch.atan],
}  # fmt: skip
ZOO: dict[str, Specimen] = {
    **{name: Specimen(lambda f=group: Wrapped(*f), (4,)) for name, group in GROUPS.items()},  # type: ignore[misc]
    **RECURRENT,
    **OTHERS,
    **{name: Specimen(lambda f=group: Wrapped(*f), (4,)) for name, group in FURTHER.items()},  # type: ignore[misc]
    "masked attention": Specimen(Masked, (3, 4)),
}

# Of the recurrent layers `make test` takes each kind and each option at least once, and `make test-full` all.
HERE = [
    *(name for name in ZOO if name not in RECURRENT),
    *some(
        RECURRENT,
        (
            "rnn time first",
            "rnn from made states",
            "rnn relu two layers",
            "lstm",
            "lstm two layers both ways",
            "lstm from learnt states",
            "gru",
            "gru both ways",
        ),
    ),
]
PLACES_HERE = [place for place, name in enumerate(ZOO) if name in HERE]
every_place = pytest.mark.parametrize("place", PLACES_HERE, ids=[list(ZOO)[place] for place in PLACES_HERE])


@functools.cache
def network(name: str, seed: int = 0, gain: float = 1.5) -> tuple[nn.Module, Network]:
    """The model in evaluation mode with weights large enough to bend, and its network."""
    torch.manual_seed(seed)
    model = ZOO[name].make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain)
    return model, Network.from_torch(model)

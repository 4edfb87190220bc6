"""What is punished falls: the growth of intervals along a recurrent network, and the first-order loss of the margin."""

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.radius import radius_problems
from holdfast.errors import BadInput
from holdfast.hardening import Recipe
from holdfast.hardening.intervals import Traced
from holdfast.hardening.losses import Widths, first_order
from holdfast.hardening.training import HardeningSettings, prepare_training, train


class Last(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent, self.head = kind(2, 6, batch_first=True), nn.Linear(6, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return logits


def rising(count: int = 60) -> tuple[Tensor, Tensor]:
    """Five frames; the class is whether the last are larger than the first."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 2
    slope = torch.linspace(-0.2, 0.2, 5)[None, :, None] * (2 * y - 1)[:, None, None]
    return (0.5 + slope + 0.05 * torch.randn(count, 5, 2, generator=generator)).clamp(0, 1), y


def trained(kind: type[nn.RNNBase], recipe: Recipe) -> hf.Network:
    torch.manual_seed(0)
    net = hf.Network.from_torch(Last(kind).eval(), domain=(0, 1))
    live = prepare_training(net, (), words=False)
    x, y = rising()
    problems = radius_problems(net, x, y)
    live.load(train(live, problems, problems, HardeningSettings(recipe, 0.05)).state)
    return live.freeze()


def growth(net: hf.Network) -> float:
    x, y = rising()
    live = prepare_training(net, (), words=False)
    widths = Widths(torch.tensor(0.05))
    with torch.no_grad():
        Traced(live.net, x, live.module).margins(x - 0.05, x + 0.05, y, widths)
    assert len(widths.seen) == 5  # the state behind each frame
    return float(widths.growth())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_intervals_grow_less_from_frame_to_frame(kind: type[nn.RNNBase]) -> None:
    def recipe(tight: float) -> Recipe:
        # All of it is warm-up, in which growth is punished.
        return Recipe("intervals", epochs=18, batch=20, rate=0.02, weight=0.1, warm=(0.0, 0.99), tight=tight)

    assert growth(trained(kind, recipe(3.0))) < 0.7 * growth(trained(kind, recipe(0.0)))


def fall(net: hf.Network) -> float:
    x, y = rising()
    return float(first_order(net, x, y, x - 0.05, x + 0.05).detach().mean())


@pytest.mark.parametrize("name", ["standard", "intervals"])
def test_the_margin_falls_less_to_first_order(name: str) -> None:
    def recipe(jacobian: float) -> Recipe:
        return Recipe(name, epochs=18, batch=20, rate=0.02, weight=0.1, warm=(0.0, 0.3), jacobian=jacobian)  # type: ignore[arg-type]

    x, y = rising()
    with_it, without = trained(nn.LSTM, recipe(1.0)), trained(nn.LSTM, recipe(0.0))
    assert fall(with_it) < 0.7 * fall(without)
    assert (with_it(x).argmax(-1) == y).double().mean() > 0.9


def test_of_a_linear_network_the_first_order_is_all() -> None:
    """The margin falls by |w . r| exactly."""
    module = nn.Linear(3, 2).eval()
    net = hf.Network.from_torch(module)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    found = first_order(net, x, y, x - 0.1, x + torch.tensor([0.1, 0.1, 0.3]))
    apart = (module.weight[0] - module.weight[1]).detach().abs()
    assert torch.allclose(found.detach(), (apart * torch.tensor([0.1, 0.1, 0.2])).sum().expand(4), atol=1e-6)


@pytest.mark.parametrize("wrong", [{"jacobian": -1.0}, {"tight": -1.0}, {"crown": (1.0, 2.0)}])
def test_a_recipe_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Recipe(**wrong)  # type: ignore[arg-type]

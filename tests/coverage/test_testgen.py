"""Generated tests against the truth: activations by torch's own hooks, changes counted by numpy, classes by the user's module."""

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.coverage.testgen import Tests
from holdfast.coverage.testgen import testgen as generate
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_gru, digits_lstm

Read = Callable[[Tensor], np.ndarray]  # inputs -> (n, neurons)


def hooked(
    module: nn.Module,
    kinds: tuple[type[nn.Module], ...],
    pick: Callable[[Tensor], Tensor] = lambda v: v.flatten(1),
) -> Read:
    """What the submodules of some kinds say, in the order in which they are called."""

    def read(x: Tensor) -> np.ndarray:
        seen: list[Tensor] = []

        def hook(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
            seen.append(pick((output if isinstance(output, Tensor) else output[0]).clone()))

        handles = [part.register_forward_hook(hook) for part in module.modules() if isinstance(part, kinds)]
        with torch.no_grad():
            module(x)
        for handle in handles:
            handle.remove()
        return torch.cat(seen, dim=1).numpy()

    return read


def kind_of(
    values: np.ndarray, criterion: str, low: np.ndarray, high: np.ndarray, threshold: float, sections: int
) -> np.ndarray:
    """(n, neurons) -> the kind of item that each value covers, -1 for none; the criteria written down again."""
    if criterion == "neuron":
        return np.where(values > threshold, 0, -1)
    if criterion == "boundary":
        return np.where(values < low, 0, np.where(values > high, 1, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        section = np.floor((values.astype(np.float64) - low) / (high.astype(np.float64) - low) * sections)
        section = np.where(values == high, sections - 1, section)
    return np.where((values >= low) & (values <= high) & (high > low), section, -1).astype(int)


def check(
    found: Tests,
    module: nn.Module,
    read: Read,
    x: Tensor,
    y: Tensor | None,
    *,
    train: Tensor | None = None,
    threshold: float = 0.0,
    sections: int = 10,
    domain: tuple[float, float] = (0.0, 1.0),
    axes: tuple[int, ...] = (),
) -> None:
    """Everything a result says, found again without the library."""
    assert float(found.x.min()) >= domain[0]
    assert float(found.x.max()) <= domain[1]
    assert len({test.numpy().tobytes() for test in found.x}) == len(found)
    # changes
    differs = found.x.numpy() != x[found.seed].numpy()
    if axes:
        differs = differs.any(tuple(axis + 1 for axis in axes))
    assert found.changed.tolist() == differs.reshape(len(found), -1).sum(1).tolist()
    assert bool((found.changed > 0).all())
    # classes
    with torch.no_grad():
        before, after = module(x[found.seed]).argmax(-1), module(found.x).argmax(-1)
    assert torch.equal(found.seed_class, before)
    assert torch.equal(found.new_class, after)
    right = before if y is None else y[found.seed]
    assert torch.equal(found.adversarial, (before == right) & (after != right))
    # coverage
    over = read(x if train is None else train)
    low, high = over.min(0), over.max(0)
    kinds = [kind_of(read(part), found.criterion, low, high, threshold, sections) for part in (x, found.x)]
    seeds, *each = [
        {(int(n), int(kind[n])) for kind in rows for n in np.nonzero(kind >= 0)[0]}
        for rows in (kinds[0], *(kind[None] for kind in kinds[1]))
    ]
    first = np.cumsum([0, *(layer.neurons for layer in found.layers)])
    told: list[set[tuple[int, int]]] = [set() for _ in each]
    for test, layer, neuron, kind in found.covers.tolist():
        told[test].add((int(first[layer]) + neuron, kind))
    assert all(mine <= truly - seeds for mine, truly in zip(told, each, strict=True))
    # What lies on an edge to within rounding is not claimed, and that is rare.
    assert sum(map(len, told)) >= 0.99 * sum(len(truly - seeds) for truly in each) - 1
    assert found.total.before == sum(layer.before for layer in found.layers) == len(seeds)
    assert found.total.after == sum(layer.after for layer in found.layers) == len(seeds.union(*told))
    for place, (layer, neuron, kind) in enumerate(found.target.tolist()):
        assert (int(first[layer]) + neuron, kind) in told[place]
    for place, covers in enumerate(told):
        others = set().union(*(c for p, c in enumerate(told) if p != place))
        assert covers - others, f"test {place} covers nothing that the others do not"


def small(seed: int = 0, *, inplace: bool = False) -> nn.Module:
    """Images of 2 channels, 5 x 5; a padded convolution, a batch norm, a linear layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm2d(4)
        norm.running_mean, norm.running_var = torch.randn(4) * 0.2, torch.rand(4) + 0.5
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), norm, nn.ReLU(inplace), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3),
        ).eval()  # fmt: skip


def images(count: int, seed: int = 0) -> Tensor:
    """In [-1, 1], mostly dark."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 2, 5, 5, generator=generator) * 0.5 - 1


BENDS = (nn.ReLU, nn.Tanh)
AROUND = (-1.0, 1.0)


# ---- what is claimed is true


@pytest.mark.parametrize("criterion", ["neuron", "multisection", "boundary"])
@pytest.mark.parametrize("labelled", [True, False])
def test_everything_told_about_the_tests_is_true(criterion: str, labelled: bool) -> None:
    module, x, train = small(), images(8), images(60, seed=1) + torch.rand(60, 1, 1, 1)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]) if labelled else None
    net = hf.Network.from_torch(module, domain=AROUND)
    found = generate(net, x, criterion, y=y, train=train, sections=4)
    assert found.status == "finished"
    assert found.after > found.before
    assert len(found) > 0
    check(found, module, hooked(module, BENDS), x, y, train=train, sections=4, domain=AROUND, axes=(0,))
    assert [(layer.layer, layer.neurons) for layer in found.layers] == [("2", 100), ("6", 12)]
    assert found.queries <= net.queries


def test_digits_and_a_threshold() -> None:
    module, data = digits_cnn(), digits("test")
    net = hf.Network.from_torch(module, domain=(0, 1))
    x, y = data.x[:10], data.y[:10]
    found = generate(net, x, y=y, threshold=0.25, tests=40)
    assert len(found) > 30
    assert found.after > found.before + 0.05
    check(found, module, hooked(module, (nn.ReLU,)), x, y, threshold=0.25, axes=(0,))


@pytest.mark.parametrize("factory", [digits_lstm, digits_gru])
def test_a_recurrent_network_has_a_neuron_for_each_state_at_each_step(
    factory: Callable[[], nn.Module],
) -> None:
    module, data = factory(), digits("test")
    x, y = data.x[:6].reshape(-1, 8, 8), data.y[:6]
    net = hf.Network.from_torch(module, domain=(0, 1))
    found = generate(net, x, "boundary", y=y)
    assert found.after > 0.95
    assert found.total.neurons == 8 * 32
    check(found, module, hooked(module, (nn.LSTM, nn.GRU)), x, y)
    frames = generate(net, x, y=y, unit="frame")
    check(frames, module, hooked(module, (nn.LSTM, nn.GRU)), x, y, axes=(1,))


def test_a_channel_is_worth_its_mean() -> None:
    module, x = small(), images(3) * 0.2 - 0.8
    found = generate(hf.Network.from_torch(module, domain=AROUND), x, "boundary", per="channel")
    assert [layer.neurons for layer in found.layers] == [4, 12]
    assert found.after > 0.9
    read = hooked(module, BENDS, lambda v: v.flatten(2).mean(2) if v.dim() > 2 else v)
    check(found, module, read, x, None, domain=AROUND, axes=(0,))


class TimeFirst(nn.Module):
    """(time, batch, features) -> (batch, classes), with a layer that lays time and batch on one axis, in that order."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.recurrent, self.bend, self.head = nn.RNN(2, 5), nn.ReLU(), nn.Linear(5, 3)
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        states = self.recurrent(x)[0]
        bent = self.bend(states.reshape(-1, 5)).reshape(states.shape) if self.mixes else self.bend(states)
        return self.head(bent[-1])


class BatchFirst(TimeFirst):
    """The same with the batch in front, so that one axis of both can be taken apart again."""

    def forward(self, x: Tensor) -> Tensor:
        states = self.recurrent(x.transpose(0, 1))[0].transpose(0, 1)
        return self.head(self.bend(states.reshape(-1, 5)).reshape(states.shape)[:, -1])


def test_time_may_stand_first() -> None:
    torch.manual_seed(0)
    module, x = TimeFirst(mixes=False), torch.rand(4, 3, 2)
    found = generate(hf.Network.from_torch(module.eval(), domain=(0, 1), time_first=True), x, "boundary")
    assert [layer.neurons for layer in found.layers] == [15, 15]
    assert not any("mixes" in note for note in found.notes)

    def read(rows: Tensor) -> np.ndarray:
        return hooked(module, (nn.RNN, nn.ReLU), lambda v: v.transpose(0, 1).flatten(1))(rows.transpose(0, 1))

    class Turned(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return module(rows.transpose(0, 1))

    check(found, Turned(), read, x, None)


def test_a_layer_on_one_axis_with_time_is_read_where_that_can_be_done() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 3, 2)
    apart = BatchFirst(mixes=True).eval()
    found = generate(hf.Network.from_torch(apart, domain=(0, 1)), x, "boundary", layers=["bend"])
    assert found.total.neurons == 15
    check(found, apart, hooked(apart, (nn.ReLU,), lambda v: v.reshape(-1, 15)), x, None)
    mixed = hf.Network.from_torch(TimeFirst(mixes=True).eval(), domain=(0, 1), time_first=True)
    assert any("bend mixes the inputs of a batch" in note for note in generate(mixed, x).notes)
    with pytest.raises(hf.errors.BadInput, match="bend mixes the inputs"):
        generate(mixed, x, layers=["bend"])


def test_layers_that_work_in_place_change_nothing() -> None:
    x = images(4)
    plain, inplace = (
        generate(hf.Network.from_torch(small(inplace=how), domain=AROUND), x) for how in (False, True)
    )
    assert plain.after > plain.before
    assert torch.equal(plain.x, inplace.x)
    assert torch.equal(plain.covers, inplace.covers)


def test_three_routes_lead_to_the_same_neurons(tmp_path: Path) -> None:
    module, x = small(), images(6)
    for net in truth.three_routes(module, x[:2], tmp_path):
        net.domain = hf.region.Domain.of(AROUND)
        found = generate(net, x, "boundary")
        assert [layer.neurons for layer in found.layers] == [100, 12], net.source
        assert len(found) > 10
        check(found, module, hooked(module, BENDS), x, None, domain=AROUND, axes=(0,))


def test_named_layers() -> None:
    module, x = small(), images(4)
    net = hf.Network.from_torch(module, domain=AROUND)
    found = generate(net, x, "boundary", layers=["5", "2"])
    assert [layer.layer for layer in found.layers] == ["2", "5"]
    check(
        found,
        module,
        hooked(module, (nn.ReLU, nn.Linear), lambda v: v.flatten(1) if v.shape[1] != 3 else v[:, :0]),
        x,
        None,
        domain=AROUND,
        axes=(0,),
    )
    with pytest.raises(hf.errors.BadInput, match="no layer 'conv9'; it has 0, 1, 2"):
        generate(net, x, layers=["conv9"])


# ---- near, and in order


def one_layer(weight: Tensor, bias: Tensor) -> nn.Module:
    """A linear layer, its ReLU, and an output that nobody looks at."""
    first = nn.Linear(weight.shape[1], weight.shape[0])
    first.weight, first.bias = nn.Parameter(weight), nn.Parameter(bias)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(weight.shape[0], 2)).eval()


def test_no_test_in_a_first_layer_changes_more_than_it_must() -> None:
    """A linear function over the domain: the fewest changes are the largest gains, in closed form."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(60, 12, generator=generator), torch.rand(5, 12, generator=generator)
    bias = -(weight @ x.T).amax(1) - torch.rand(60, generator=generator) * 4  # no neuron fires on any seed
    found = generate(hf.Network.from_torch(one_layer(weight, bias), domain=(0, 1)), x, tries=1)
    gains = (
        torch.maximum(weight[:, None] * (1 - x), -weight[:, None] * x)
        .sort(-1, descending=True)
        .values.double()
        .cumsum(-1)
    )
    need = -(x.double() @ weight.double().T + bias.double()).T  # (neurons, seeds)
    can = gains[..., -1] > need + 1e-3
    assert found.total.before == 0
    assert found.total.after == int(can.any(1).sum()) < 60
    fewest = (gains <= need[..., None]).sum(-1) + 1
    for test, (_, neuron, _) in enumerate(found.target.tolist()):
        assert int(found.changed[test]) == int(fewest[neuron, found.seed[test]])
    assert int(found.changed.max()) >= 4


def test_the_nearest_neuron_comes_first_and_from_the_nearest_seed() -> None:
    weight, bias = torch.eye(3), torch.tensor([-0.9, -0.5, -0.7])
    x = torch.tensor([[0.1, 0.1, 0.1], [0.1, 0.3, 0.1], [0.2, 0.0, 0.1]])
    net = hf.Network.from_torch(one_layer(weight, bias), domain=(0, 1))
    for tests, order in ((1, [1]), (2, [1, 2]), (3, [1, 2, 0])):
        found = generate(net, x, batch=1, tests=tests)
        assert found.target[:, 1].tolist() == order
        assert found.seed.tolist()[:1] == [1]
        assert found.status == ("finished" if tests == 3 else "stopped")
    assert found.seed.tolist() == [1, 0, 2]


def test_what_cannot_be_covered_is_counted_and_not_hidden() -> None:
    weight, bias = torch.ones(2, 4), torch.tensor([-2.5, -5.0])
    found = generate(hf.Network.from_torch(one_layer(weight, bias), domain=(0, 1)), torch.zeros(2, 4))
    assert (found.total.items, found.total.before, found.total.after) == (2, 0, 1)
    assert found.after == 0.5
    assert found.status == "finished"
    assert found.changed.tolist() == [3]


def test_a_move_that_jumps_over_a_section_stops_inside_it() -> None:
    """One number, 0 or 1 at the ends of the domain: the sections between are reached by numbers between."""
    module = one_layer(torch.tensor([[100.0]]), torch.tensor([0.0]))
    found = generate(
        hf.Network.from_torch(module, domain=(0, 1)),
        torch.zeros(1, 1),
        "multisection",
        train=torch.tensor([[0.0], [0.8]]),
        sections=20,
    )
    assert (found.total.items, found.total.before, found.total.after) == (20, 1, 20)
    assert sorted((found.x[:, 0] * 25).floor().int().tolist()) == list(range(1, 20))


@pytest.mark.parametrize("shown", [True, False])
def test_no_change_can_be_taken_back(shown: bool) -> None:
    """With any one changed number as it was in the seed, the neuron is back in its range: also in a black box, where numbers are drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Sequential(
            nn.Linear(40, 60),
            nn.ReLU(),
            nn.Linear(60, 20),
            nn.ReLU(),
            nn.Linear(20, 8),
            nn.Tanh(),
            nn.Linear(8, 3),
        ).eval()
    x = torch.rand(6, 40, generator=torch.Generator().manual_seed(0)) * 0.3 + 0.3
    train = torch.rand(2000, 40, generator=torch.Generator().manual_seed(1)).round()
    black = hf.Network.from_callable(
        lambda rows: module(torch.from_numpy(rows)).detach().numpy(), domain=(0, 1)
    )
    net = hf.Network.from_torch(module, domain=(0, 1)) if shown else black
    read: Read = hooked(module, (nn.Tanh,)) if shown else lambda rows: module(rows).detach().numpy()
    found = generate(net, x, "boundary", train=train, layers=["5"] if shown else None)
    check(found, module, read, x, None, train=train)
    assert int(found.changed.max()) >= 10
    low, high = read(train).min(0), read(train).max(0)
    for test, (_, place, kind) in enumerate(found.target.tolist()):
        units = (found.x[test] != x[found.seed[test]]).nonzero().flatten()
        back = found.x[test].repeat(len(units), 1)
        back[range(len(units)), units] = x[found.seed[test], units]
        values, slack = read(back)[:, place], 1e-4 * np.abs(high).max()
        assert (values > low[place] - slack).all() if kind == 0 else (values < high[place] + slack).all()


def test_a_unit_of_several_numbers_is_one_change() -> None:
    """Both channels of a pixel must move, one up and one down."""
    module = nn.Sequential(nn.Conv2d(2, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).eval()
    module[0].weight, module[0].bias = (
        nn.Parameter(torch.tensor([[[[1.0]], [[-1.0]]]])),
        nn.Parameter(torch.tensor([-1.5])),
    )
    found = generate(hf.Network.from_torch(module, domain=AROUND), torch.zeros(1, 2, 2, 2))
    assert found.after == 1
    assert found.changed.tolist() == [1] * 4
    apart = generate(hf.Network.from_torch(module, domain=AROUND), torch.zeros(1, 2, 2, 2), unit="number")
    assert apart.changed.tolist() == [2] * 4


# ---- limits


def test_the_same_seed_gives_the_same_tests() -> None:
    x = images(5)  # Two networks, since the queries that check a model are made once for each.
    first, again = (
        generate(hf.Network.from_torch(small(), domain=AROUND), x, "boundary", seed=3) for _ in range(2)
    )
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.covers, again.covers)
    assert first.queries == again.queries


def test_limits_on_changes_and_tests() -> None:
    x, module = images(5), small()
    net = hf.Network.from_torch(module, domain=AROUND)
    free, near, few = (
        generate(net, x, "boundary"),
        generate(net, x, "boundary", changes=1),
        generate(net, x, "boundary", tests=3),
    )
    assert int(free.changed.max()) > 1 == int(near.changed.max())
    assert near.after < free.after
    assert len(few) == 3
    assert few.status == "stopped"
    for found in (near, few):
        check(found, module, hooked(module, BENDS), x, None, domain=AROUND, axes=(0,))


def test_a_stop_is_honoured() -> None:
    x, module = images(5), small()
    net = hf.Network.from_torch(module, domain=AROUND)
    whole = generate(net, x, "boundary")
    for stop in (hf.Stop(seconds=0), hf.Stop(queries=0)):
        none = generate(net, x, "boundary", stop=stop)
        assert len(none) == 0
        assert none.x.shape == (0, 2, 5, 5)
        assert none.covers.shape == (0, 4)
        assert none.status == "stopped"
        assert none.total.before == none.total.after == whole.total.before
    budget, asked = whole.queries // 4, whole.total.items - whole.total.before
    part = generate(net, x, "boundary", stop=hf.Stop(queries=budget // asked), batch=4)
    assert part.status == "stopped"
    assert whole.total.before < part.total.after < whole.total.after
    assert part.queries < budget + 4 * 2 * 128 * 3  # one step of a batch of four
    check(part, module, hooked(module, BENDS), x, None, domain=AROUND, axes=(0,))


def test_a_search_in_a_hurry_takes_along_what_it_tried_for_other_neurons() -> None:
    """The first neuron hears two numbers and the first of them better; the others hear the second. There is time for one step."""
    weight, x = torch.zeros(50, 3), torch.zeros(1, 3)
    weight[:, 1], weight[0, 0] = 1.0, 2.0
    module = one_layer(weight, -torch.linspace(0.1, 0.9, 50))
    net = hf.Network.from_torch(module, domain=(0, 1))
    found = generate(net, x, batch=1, stop=hf.Stop(queries=2))
    assert found.x.tolist() == [[1, 0, 0], [0, 1, 0]] or found.x.tolist() == [[0, 1, 0]]
    assert found.after == 1
    check(found, module, hooked(module, (nn.ReLU,)), x, None)
    one_step = generate(net, x, batch=1, tests=1)
    assert one_step.x.tolist() == [[1, 0, 0]]


def test_an_interruption_keeps_what_was_found() -> None:
    x, module = images(5), small()
    net, steps = hf.Network.from_torch(module, domain=AROUND), list[object]()

    def progress(now: object) -> None:
        steps.append(now)
        if len(steps) == 3:
            raise KeyboardInterrupt

    found = generate(net, x, "boundary", batch=4, progress=progress)
    assert found.status == "interrupted"
    assert 0 < len(found) <= 12
    check(found, module, hooked(module, BENDS), x, None, domain=AROUND, axes=(0,))


# ---- black boxes and mistakes


def test_a_black_box_shows_only_its_outputs() -> None:
    weight = np.random.default_rng(0).normal(size=(6, 3))

    def function(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(rows), -1) @ weight

    x = torch.rand(5, 2, 3) * 0.2 + 0.4
    net = hf.Network.from_callable(function, domain=(0, 1), name="mine")
    found = generate(net, x, "boundary")
    assert any(
        "mine is a black box" in note and "outputs are taken for the neurons" in note for note in found.notes
    )
    assert [layer.layer for layer in found.layers] == ["outputs"]
    assert found.after == 1

    class Shown(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return torch.from_numpy(function(rows.numpy()).astype(np.float32))

    check(found, Shown(), lambda rows: function(rows.numpy()).astype(np.float32), x, None)
    with pytest.raises(hf.errors.BadInput, match="mine shows no layers"):
        generate(net, x, layers=["1"])


def test_a_network_without_hidden_layers_says_so() -> None:
    found = generate(
        hf.Network.from_torch(nn.Linear(4, 3).eval(), domain=(0, 1)), torch.rand(3, 4), "boundary"
    )
    assert any("no hidden activation or recurrent layer" in note for note in found.notes)


def test_a_single_output_has_no_classes_to_be_adversarial_about() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).eval()
    found = generate(
        hf.Network.from_torch(module, domain=(0, 1)), torch.rand(3, 4), "boundary", y=torch.rand(3)
    )
    assert len(found) > 0
    assert not bool(found.adversarial.any())


def test_notes_on_neurons_without_items() -> None:
    x, net = images(4), hf.Network.from_torch(small(), domain=AROUND)
    relu = hooked(small(), BENDS)(x)
    still = int((relu.min(0) == relu.max(0)).sum())
    assert (
        f"{still} of 112 neurons are constant on the data, so they have no sections"
        in generate(net, x, "multisection").notes
    )
    rests = int((relu[:, :100].min(0) == 0).sum())
    found = generate(net, x, "boundary", stop=hf.Stop(queries=0))
    assert (
        f"{rests} of 224 intervals lie outside the range of their layer, so they are left out" in found.notes
    )
    assert found.total.items == 224 - rests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"criterion": "branch"}, "criterion 'branch' is unknown; there are neuron, multisection, boundary"),
        ({"per": "layer"}, "per 'layer' is unknown"),
        ({"sections": 0}, "sections must be"),
        ({"threshold": float("nan")}, "the threshold must be a number"),
        ({"changes": 0}, "changes must be at least 1"),
        ({"tests": -1}, "tests must be at least 1"),
        ({"stop": hf.Stop(gap=1)}, "no gap to close"),
        ({"x": torch.ones(2, 4, dtype=torch.int64)}, "x holds integers"),
        ({"x": torch.full((2, 4), 3.0)}, "x: input 0 has values from 3 to 3"),
        ({"x": torch.zeros(0, 4)}, "empty"),
        ({"x": torch.zeros(2, 5)}, "refused inputs of shape"),
        ({"x": [torch.zeros(4), torch.zeros(5)]}, "all inputs need the same shape"),
        ({"y": [0, 7]}, "label 7 of input 1 is out of range"),
        ({"y": [0]}, "one class for each input"),
        ({"train": torch.zeros(2, 5)}, "train: inputs of shape"),
        ({"train": torch.full((2, 4), torch.nan)}, "train: input 0 holds NaN"),
        ({"unit": "word"}, "unit 'word' is unknown"),
        ({"unit": "pixel"}, "unit 'pixel' needs images"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_any_work(options: dict[str, object], words: str) -> None:
    net = hf.Network.from_torch(one_layer(torch.ones(2, 4), torch.zeros(2)), domain=(0, 1))
    given = {"x": torch.zeros(2, 4), **options}
    with pytest.raises(hf.errors.BadInput, match=words.replace("(", r"\(")):
        generate(net, **given)  # type: ignore[arg-type]
    assert net.queries <= 8


def test_an_open_domain_is_refused() -> None:
    with pytest.raises(hf.errors.BadInput, match=r"has none: state it \(domain=, --domain\)"):
        generate(hf.Network.from_torch(nn.Linear(4, 3).eval()), torch.rand(3, 4))


def test_items_are_asked_about_in_blocks_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input for each item would fill neurons times inputs numbers: 5 GiB at 96 x 96 pixels."""
    x, module = images(5), small()
    net = hf.Network.from_torch(module, domain=AROUND)
    whole = generate(net, x, "boundary", batch=4)
    sizes: list[int] = []
    module_of = importlib.import_module(
        "holdfast.coverage.testgen"
    )  # the package gives its name to a function
    inner = module_of.solve

    def solve(problems: list[hf.Problem], *given: object, **named: object) -> object:
        sizes.extend(problem.region.centre.numel() for problem in problems)
        return inner(problems, *given, **named)

    monkeypatch.setattr(module_of, "solve", solve)
    monkeypatch.setattr(module_of, "BLOCK_NUMBERS", 40 * x[0].numel())
    found = generate(net, x, "boundary", batch=4)
    assert len(sizes) > 1
    assert max(sizes) <= 40 * x[0].numel()
    assert found.status == whole.status == "finished"
    assert found.total.items == whole.total.items
    assert abs(found.total.after - whole.total.after) <= whole.total.items // 20, (
        "other tests, but about as much is covered"
    )
    check(found, module, hooked(module, BENDS), x, None, domain=AROUND, axes=(0,))
    few = generate(net, x, "boundary", batch=4, tests=3)
    assert len(few) == 3

"""The benchmarks' own attacks, guarantees and findings, on networks small enough for brute force."""

import pytest
import torch
from benchmarks.hamming import designs, guarantee, l0_attacks, subspaces
from benchmarks.hamming.designs import Evaluated
from benchmarks.hamming.nets import Case
from benchmarks.hamming.subspaces import Interval
from torch import Tensor, nn

import holdfast as hf

SIDE = 3


def small(seed: int = 0, hidden: int | None = 8) -> Case:
    """A network of 3 x 3 images with three classes (hidden=None: linear), and six images with their classes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (
            [nn.Linear(SIDE * SIDE, 3)]
            if hidden is None
            else [nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, 3)]
        )
        module = nn.Sequential(nn.Flatten(), *layers).eval()
        x = torch.rand(6, 1, SIDE, SIDE)
    for part in module.parameters():
        part.requires_grad_(False)
    y = module(x).argmax(1)
    return Case(hf.Network.from_torch(module, domain=(0, 1)), x, x, y, module)


def fewest(case: Case) -> Tensor:
    """The smallest number of pixels of each image whose change to 0 or 1 changes the class; infinite if none."""
    choice = torch.cartesian_prod(*[torch.arange(3)] * (SIDE * SIDE))  # Keep, 0, or 1.
    found = []
    for image, label in zip(case.x, case.y, strict=True):
        changed = torch.where(choice == 0, image.flatten(), (choice - 1).float())
        fails = case.module(changed.reshape(-1, 1, SIDE, SIDE)).argmax(1) != label
        count = (choice > 0).sum(1).double()
        found.append(float(torch.where(fails, count, torch.inf).min()))
    return torch.tensor(found)


@pytest.mark.parametrize("name", ["jsma", "carlini_wagner_l0", "sigma_zero", "sparse_rs"])
def test_an_attack_returns_images_of_the_domain_and_never_beats_brute_force(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l0_attacks, "SIGMA_STEPS", 100)
    monkeypatch.setattr(l0_attacks, "RS_QUERIES", 100)
    monkeypatch.setattr(l0_attacks, "JSMA_SHARE", 1.0)
    case = small(5, hidden=None)
    found = getattr(l0_attacks, name)(case.module, case.x, case.y).detach()
    assert found.shape == case.x.shape
    assert bool(((found >= 0) & (found <= 1)).all())
    fails = case.module(found).argmax(1) != case.y
    changed = l0_attacks.changed_pixels(case.x, found)
    # A linear network's margins are smallest at the values 0 and 1, so brute force over them is exact.
    truth = fewest(case)
    assert bool((changed[fails] >= truth[fails]).all())
    assert int(truth.isfinite().sum()) >= 3
    assert int(fails.sum()) >= 3
    if name == "sparse_rs":
        assert bool((changed[fails] <= truth[fails] + 2).all())
        assert bool((changed[fails] == truth[fails]).any())


def test_the_grid_and_the_constant_hold_between_the_grid_points() -> None:
    """A claim is attacked at many values between the grid points; the estimate alone would be refutable."""
    claims = 0
    for seed in range(6):
        case = small(seed)
        for image, label in zip(case.x, case.y, strict=True):
            least, slope, _ = guarantee.pixel_bounds(case, image, label)
            fine = guarantee.grid_margins(case, image, label, 101)
            assert bool((least <= fine.amin(1) + 1e-9).all())
            steps = (fine[:, 1:] - fine[:, :-1]).abs() * 100
            assert bool((steps <= slope[:, None] * (1 + 1e-9)).all())
            for levels in (2, 3, 9):
                if guarantee.holds(guarantee.grid_margins(case, image, label, levels), slope, levels):
                    claims += 1
                    assert bool((fine > 0).all())
    assert claims > 5


def test_a_coarse_grid_needs_a_larger_margin() -> None:
    margins, slope = torch.full((4, 2), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    assert not guarantee.holds(margins, slope, 2)  # 0.5 is not above 1 * 1 / 2.
    assert guarantee.holds(margins, slope, 3)
    assert not guarantee.holds(torch.full((4, 3), -0.1, dtype=torch.float64), slope, 3)


def test_intervals_against_t_equal_brute_force_on_the_grid() -> None:
    case = small(6)
    truth = (fewest(case) - 1).tolist()
    before = None
    for t in (1, 2):
        found = subspaces.evaluate(case, case.x, case.y, t, before)
        for one, exact in zip(found, truth, strict=True):
            assert one.lower == min(t, one.upper)
            assert one.lower <= min(exact, SIDE * SIDE) <= one.upper
            if exact < t:
                assert one.converged
        before = found


def test_findings_are_means_of_paired_differences() -> None:
    def runs(values: list[float]) -> list[Evaluated]:
        return [Evaluated(0.9, [Interval(1, 3, 0.0)], torch.tensor(values, dtype=torch.float64))]

    found = {}
    for place, name in enumerate(designs.DESIGNS):
        found[name, False] = runs([float(place), float(place)])
        found[name, True] = runs([float(place) + 1, float(place) + 2])
    lines = designs.findings(found)
    assert lines[0] == "DNN-7 minus the mean of DNN-1 to DNN-5, without batch norm: +4.00 ± 0.00 pixels."
    assert lines[1] == "DNN-6 minus DNN-5, without batch norm: +1.00 ± 0.00 pixels."
    assert lines[-1].startswith("Batch norm: with minus without, all designs: +1.50 ±")
    assert lines[-1].endswith("better: 7 of 7.")


def test_designs_have_the_stated_layers() -> None:
    for name, (convolutions, dense) in designs.DESIGNS.items():
        for norm in (False, True):
            module = designs.build(name, norm=norm, seed=0)
            kinds = [type(layer) for layer in module]
            assert kinds.count(nn.Conv2d) == convolutions
            assert kinds.count(nn.BatchNorm2d) == (convolutions if norm else 0)
            assert kinds.count(nn.Linear) == dense + 1
            assert module(torch.zeros(2, 1, 28, 28)).shape == (2, 10)

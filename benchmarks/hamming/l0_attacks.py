"""Four attacks that change few pixels, written here from their papers, so that the comparison of DeepTRE's
Figures 5 and 6 runs without other packages.

- JSMA: Papernot et al., The limitations of deep learning in adversarial settings, EuroS&P 2016. Pairs of
  pixels are raised to one, chosen by the saliency map of the logits; every target class is tried.
- C&W-L0: Carlini and Wagner, Towards evaluating the robustness of neural networks, S&P 2017. Repeated L2
  attacks on a shrinking set of pixels: after each success the pixels with the smallest |gradient x change| are
  fixed. One weight of the loss for all rounds in place of the paper's search over weights.
- sigma-zero: Cina et al., sigma-zero: gradient-based optimization of L0-norm adversarial examples, 2024.
- Sparse-RS: Croce et al., Sparse-RS: a versatile framework for query-efficient sparse black-box adversarial
  attacks, AAAI 2022. The paper's attack has a fixed number k of pixels; here k starts at half of them and
  is lowered by a tenth, at least by one, after each success.

Each takes a module, images (batch, channels, height, width) in [0, 1] and labels, and returns images; an image
without success is returned unchanged or still classified correctly. A pixel is all channels at one place. The
callers replay every result and count the changed pixels themselves.
"""

import math

import torch
from torch import Tensor, nn

JSMA_SHARE = 0.2  # JSMA changes at most this share of the pixels (gamma; chosen by hand).
CW_ROUNDS = 30  # Rounds of C&W-L0 that each fix pixels (chosen by hand).
CW_STEPS = 60  # Adam steps of each L2 attack (the paper: up to 10,000; chosen by hand).
CW_SHARE = 0.3  # Share of the changed pixels that a round of C&W-L0 fixes, at least one (chosen by hand).
CW_WEIGHT = 10.0  # Weight of the classification loss against the squared distance (chosen by hand).
SIGMA_STEPS = 1000  # Steps of sigma-zero (the paper's default).
SIGMA = 1e-3  # Smoothing of the L0 norm (the paper's default).
FIRST_THRESHOLD = 0.3  # First threshold below which sigma-zero resets a change (the paper's default).
THRESHOLD_RATE = 0.01  # Relative change of this threshold at each step (the paper's default).
RS_QUERIES = 2000  # Queries of Sparse-RS for an image (the paper: 10,000; chosen by hand).
RS_FIRST_SIZE = 0.5  # The first number k of changed pixels, as a share of all pixels (chosen by hand).
RS_FIRST = 0.3  # Share of the pixels exchanged in the first proposals of Sparse-RS (the paper's alpha).


def margins(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(batch,) logit of the label minus the largest other logit; below zero: misclassified."""
    outputs = module(x)
    own = outputs.gather(1, y[:, None])[:, 0]
    return own - outputs.scatter(1, y[:, None], -torch.inf).amax(1)


def changed_pixels(x: Tensor, found: Tensor) -> Tensor:
    """(batch,) number of pixels that differ."""
    return (x != found).any(1).flatten(1).sum(1)


def keep_better(module: nn.Module, x: Tensor, y: Tensor, best: Tensor, found: Tensor) -> Tensor:
    """For each image the one that is misclassified with fewer changed pixels."""
    with torch.no_grad():
        fails = module(found).argmax(1) != y
        known = module(best).argmax(1) != y
    better = fails & (~known | (changed_pixels(x, found) < changed_pixels(x, best)))
    return torch.where(better[:, None, None, None], found, best)


# ---------------------------------------------------------------- JSMA


def jsma(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    best = x.clone()
    with torch.no_grad():
        classes = module(x[:1]).shape[1]
    for target in range(classes):
        best = keep_better(module, x, y, best, _jsma_toward(module, x, y, target))
    return best


def _jsma_toward(module: nn.Module, x: Tensor, y: Tensor, target: int) -> Tensor:
    """Raise pairs of pixels toward a class until the image is misclassified."""
    found, pixels = x.clone(), x[0, 0].numel()
    open_rows = (y != target).nonzero()[:, 0]
    for _ in range(max(1, int(JSMA_SHARE * pixels / 2))):
        if not len(open_rows):
            break
        part = found[open_rows].requires_grad_(True)
        outputs = module(part)
        toward = torch.autograd.grad(outputs[:, target].sum(), part, retain_graph=True)[0]
        others = torch.autograd.grad(outputs.sum(), part)[0] - toward
        free = (part.detach() < 1).any(1).flatten(1)
        first, second = _best_pair(toward.sum(1).flatten(1), others.sum(1).flatten(1), free)
        flat = found.flatten(2)
        flat[open_rows, :, first] = 1.0
        flat[open_rows, :, second] = 1.0
        found = flat.reshape(x.shape)
        with torch.no_grad():
            still = module(found[open_rows]).argmax(1) == y[open_rows]
        open_rows = open_rows[still & free.any(1)]
    return found


def _best_pair(toward: Tensor, others: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The pair (p, q) with a = toward_p + toward_q > 0, b = others_p + others_q < 0 and the largest -a b.

    Where no pair qualifies, the two free pixels with the largest toward - others.
    """
    count = toward.shape[1]
    a = toward[:, :, None] + toward[:, None, :]
    b = others[:, :, None] + others[:, None, :]
    allowed = (a > 0) & (b < 0) & free[:, :, None] & free[:, None, :]
    allowed &= ~torch.eye(count, dtype=torch.bool, device=toward.device)
    value, place = torch.where(allowed, -a * b, -torch.inf).flatten(1).max(1)
    fallback = torch.where(free, toward - others, -torch.inf).topk(2, dim=1).indices
    some = value > -torch.inf
    first = torch.where(some, place // count, fallback[:, 0])
    second = torch.where(some, place % count, fallback[:, 1])
    return first, second


# ---------------------------------------------------------------- C&W-L0


def carlini_wagner_l0(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    best, start = x.clone(), x.clone()
    allowed = torch.ones_like(x[:, :1], dtype=torch.bool)
    alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for _ in range(CW_ROUNDS):
        found, gradient = _least_squares(module, x, y, start, allowed)
        with torch.no_grad():
            alive = alive & (module(found).argmax(1) != y)
        if not bool(alive.any()):
            break
        best = torch.where(alive[:, None, None, None], keep_better(module, x, y, best, found), best)
        start = found
        importance = ((found - x) * gradient).abs().sum(1, keepdim=True)
        moved = (found != x).any(1, keepdim=True) & allowed
        # Pixels that did not move are fixed at once, then the least important ones.
        ranked = torch.where(moved, importance, torch.inf).flatten(1).sort(1)
        count = moved.flatten(1).sum(1)
        fixed = (count.double() * CW_SHARE).long().clamp_min(1)
        place = torch.arange(ranked.indices.shape[1], device=x.device)
        drop = torch.zeros_like(ranked.indices, dtype=torch.bool)
        drop.scatter_(1, ranked.indices, place[None] < fixed[:, None])
        allowed = moved & ~drop.reshape(moved.shape)
    return best


def _least_squares(
    module: nn.Module, x: Tensor, y: Tensor, start: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """The L2 attack in tanh space on the allowed pixels: the nearest misclassified images (else the last
    ones), and the gradient of the classification loss there.
    """
    inside = (start * 2 - 1).clamp(-1 + 1e-3, 1 - 1e-3).atanh()
    w = inside.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([w], lr=0.1)
    nearest = torch.full((len(x),), torch.inf, device=x.device)
    found = x.clone()
    for _ in range(CW_STEPS):
        moved = torch.where(allowed, (w.tanh() + 1) / 2, x)
        margin = margins(module, moved, y)
        distance = (moved - x).square().flatten(1).sum(1)
        optimiser.zero_grad()
        (distance + CW_WEIGHT * margin.clamp_min(-0.01)).sum().backward()
        optimiser.step()
        better = (margin < 0) & (distance < nearest)
        nearest = torch.where(better, distance, nearest).detach()
        found = torch.where(better[:, None, None, None], moved, found).detach()
    last = found.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(margins(module, last, y).sum(), last)
    return found, gradient


# ---------------------------------------------------------------- sigma-zero


def sigma_zero(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    best = x.clone()
    delta = torch.zeros_like(x, requires_grad=True)
    threshold = torch.full((len(x), 1, 1, 1), FIRST_THRESHOLD, device=x.device)
    optimiser = torch.optim.Adam([delta], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, SIGMA_STEPS, eta_min=0.1)
    for _ in range(SIGMA_STEPS):
        margin = margins(module, x + delta, y)
        squared = delta.square()
        smooth = (squared / (squared + SIGMA)).flatten(1).sum(1) / delta[0].numel()
        optimiser.zero_grad()
        (margin.clamp_min(0) + smooth).sum().backward()
        assert delta.grad is not None
        largest = delta.grad.flatten(1).abs().amax(1).clamp_min(1e-12)
        delta.grad /= largest[:, None, None, None]
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            delta.copy_((x + delta).clamp(0, 1) - x)
            delta[delta.abs() < threshold.expand_as(delta)] = 0
            moved = (x + delta).clamp(0, 1)
            best = keep_better(module, x, y, best, moved)
            rate = THRESHOLD_RATE * schedule.get_last_lr()[0]
            fails = (module(moved).argmax(1) != y)[:, None, None, None]
            threshold = torch.where(fails, threshold * (1 + rate), threshold * (1 - rate)).clamp(0, 1)
    return best


# ---------------------------------------------------------------- Sparse-RS


def sparse_rs(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Random search over sets of k pixels with values 0 or 1, for all images at once."""
    generator = torch.Generator().manual_seed(0)
    pixels, channels = x[0, 0].numel(), x.shape[1]
    size = torch.full((len(x),), max(1, int(RS_FIRST_SIZE * pixels)))
    best = x.clone()
    place, colour = _draw(len(x), pixels, channels, generator)
    lowest = torch.full((len(x),), torch.inf)
    for query in range(RS_QUERIES):
        share = RS_FIRST * _schedule(query / RS_QUERIES)
        trial_place, trial_colour = place.clone(), colour.clone()
        if query:
            for row in range(len(x)):
                _exchange(trial_place[row], trial_colour[row], int(size[row]), share, generator)
        found = _painted(x, trial_place, trial_colour, size)
        with torch.no_grad():
            value = margins(module, found, y).cpu()
        better = value <= lowest
        lowest = torch.where(better, value, lowest)
        place[better], colour[better] = trial_place[better], trial_colour[better]
        fails = value < 0
        if bool(fails.any()):
            best = keep_better(module, x, y, best, found)
            reached = changed_pixels(x, best).cpu()
            smaller = fails & (reached > 1)
            known = torch.minimum(size[smaller], reached[smaller])
            size[smaller] = known - (known // 10).clamp_min(1)
            lowest[smaller] = torch.inf
    return best


def _draw(rows: int, pixels: int, channels: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random order of the pixels for each image, and random values 0 or 1 for each."""
    place = torch.rand(rows, pixels, generator=generator).argsort(1)
    return place, torch.randint(0, 2, (rows, pixels, channels), generator=generator).float()


def _exchange(place: Tensor, colour: Tensor, size: int, share: float, generator: torch.Generator) -> None:
    """Exchange some of the first `size` pixels for others, with new values."""
    count = min(max(1, math.ceil(share * size)), len(place) - size)
    out = torch.randint(0, size, (count,), generator=generator)
    new = torch.randint(size, len(place), (count,), generator=generator)
    for a, b in zip(out.tolist(), new.tolist(), strict=True):
        place[[a, b]] = place[[b, a]]
        colour[a] = torch.randint(0, 2, colour[a].shape, generator=generator).float()


def _painted(x: Tensor, place: Tensor, colour: Tensor, size: Tensor) -> Tensor:
    """The images with the first `size` pixels of each order set to their values."""
    chosen = torch.arange(place.shape[1])[None] < size[:, None]
    flat = x.flatten(2).clone()
    rows, at = chosen.nonzero(as_tuple=True)
    flat[rows, :, place[rows, at]] = colour[rows, at].to(x)
    return flat.reshape(x.shape)


def _schedule(done: float) -> float:
    """The share of exchanged pixels falls by halves, as in the paper."""
    steps = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    return 0.5 ** sum(done > step for step in steps)

"""A monitor that scores with MARBLE's own model: equal to the fitted model, in batches, in streams and from disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marble_truth import traces
from monitor_truth import Reader, some_groups, some_sequences

from holdfast.errors import BadInput, HoldfastError
from holdfast.monitor import Monitor, Noise
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.marble_scores import MarbleScores
from holdfast.monitor.abstract.traces import profile
from holdfast.monitor.saving import digest
from holdfast.monitor.stored_settings import checked_marble

TRAINING = some_sequences([8] * 60, seed=7)
NEW = some_sequences([8] * 12, seed=8)


def marble(module: Reader, **settings: Any) -> Monitor:
    return Monitor.fit(module.network(), TRAINING, some_groups(), mode="marble", **settings)


@pytest.mark.parametrize("split", ["marble", "random"])
def test_the_arrays_place_states_as_the_classifiers_do(split: Any) -> None:
    seen, _, _ = traces(0, count=100)
    new, _, _ = traces(0, count=160)
    model = Marble.fit(seen, Refinement(4, 0.1, split=split))
    flat = MarbleScores.of_model(model)
    assert model.mdp.states > 5
    for rows in (seen, new):
        found = flat.abstract_states(rows.states.double().numpy())
        np.testing.assert_array_equal(found, model.abstract(rows.states))
        value, support, low, high = flat.estimate(rows.states, rows.abstract, rows.labels, rows.margins)
        wanted, known = model.estimate(rows)
        np.testing.assert_allclose(value.numpy(), wanted.clip(0, 1), atol=1e-12)
        np.testing.assert_array_equal(support.numpy() > 0, known)
        assert set(low.tolist()) == {0.0}
        assert set(high.tolist()) == {1.0}


def test_a_model_of_one_state_needs_no_classifier() -> None:
    seen, _, _ = traces(0)
    model = Marble.fit(seen, Refinement(4, 1e9))
    flat = checked_marble(MarbleScores.of_model(model), 6)
    assert set(flat.abstract_states(seen.states.double().numpy()).tolist()) == {0}


def test_inputs_and_labels_outside_of_the_model_get_the_mean_and_no_support() -> None:
    seen, _, _ = traces(0)
    flat = MarbleScores.of_model(Marble.fit(seen))
    states, labels = seen.states[:3], torch.tensor([0, 77, -1])
    value, support, _, _ = flat.estimate(states, torch.tensor([10**9, 0, 0]), labels, labels)
    assert value.tolist() == [flat.unseen] * 3
    assert support.tolist() == [0, 0, 0]
    assert flat.single(states[0].numpy(), -3, 0, 0.0) == (flat.unseen, 0, 0.0, 1.0)


@pytest.mark.parametrize("cell", ["lstm", "gru-stacked", "rnn-tanh"])
def test_a_marble_monitor_scores_as_the_fitted_model(cell: str, tmp_path: Path) -> None:
    module, groups = Reader(cell), some_groups()
    monitor = marble(module, omega=5, theta=0.3, seed=3)
    net = module.network()
    model = Marble.fit(profile(net, TRAINING, groups), Refinement(5, 0.3, seed=3))
    new = profile(net, NEW, groups)
    wanted, known = model.estimate(new)
    scores = monitor.score_all(NEW)
    free = torch.cat([s.attackable for s in scores])
    assert bool(free.any())
    value = torch.cat([s.values for s in scores])
    np.testing.assert_allclose(value[free].numpy(), wanted[free.numpy()].clip(0, 1), atol=1e-9)
    assert bool((value[~free] == 1).all())
    np.testing.assert_array_equal(
        (torch.cat([s.support for s in scores]) > 0)[free].numpy(), known[free.numpy()]
    )
    assert scores[0].evidence.kind == "estimated"
    assert (scores[0].evidence.settings["omega"], scores[0].evidence.settings["theta"]) == (5, 0.3)

    monitor.save(tmp_path)
    again = Monitor.load(tmp_path, module.network())
    assert again.mode == "marble"
    for sequence, found in zip(NEW, scores, strict=True):
        reloaded = again.score(sequence)
        torch.testing.assert_close(reloaded.values, found.values, rtol=0, atol=1e-12)
        assert torch.equal(reloaded.support, found.support)
        for one in (monitor, again):
            stream = one.stream()
            steps = [stream.step(token) for token in sequence.tolist()]
            assert [s.value for s in steps if s] == pytest.approx(found.values.tolist(), abs=1e-6)
            assert [(s.low, s.high) for s in steps if s] == list(
                zip(found.low.tolist(), found.high.tolist(), strict=True)
            )


def test_frames_are_scored_from_draws() -> None:
    module = Reader("gru", tokens=False)
    frames = list(torch.randn(20, 5, 6, generator=torch.Generator().manual_seed(1)))
    monitor = Monitor.fit(module.network(), frames, Noise(1.0), mode="marble", samples=20)
    assert monitor.score(frames[0]).evidence.kind == "estimated"


def test_omega_and_theta_change_the_model() -> None:
    module = Reader("lstm")
    coarse, fine = marble(module, theta=50.0).tree, marble(module, theta=0.2).tree
    assert fine.states > coarse.states
    assert len(marble(module, omega=2).tree.components) == 2
    assert marble(module).tree.refinement == Refinement(16, 0.6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "exact", "omega": 4}, "settings of mode marble"),
        ({"mode": "abstract", "theta": 0.5}, "settings of mode marble"),
        ({"mode": "marble", "omega": 0}, "omega=0"),
        ({"mode": "marble", "omega": True}, "omega=True"),
        ({"mode": "marble", "omega": 2.5}, "omega=2.5"),
        ({"mode": "marble", "theta": -0.1}, "theta=-0.1"),
        ({"mode": "marble", "theta": float("inf")}, "theta=inf"),
        ({"mode": "marble", "theta": float("nan")}, "theta=nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        Monitor.fit(Reader("lstm").network(), TRAINING, some_groups(), **settings)


def test_a_black_box_later_answers_and_no_data_are_refused() -> None:
    with pytest.raises(BadInput, match=r"black box.*mode='abstract'"):
        marble(Reader("lstm", take="mean"))
    with pytest.raises(BadInput, match="learns from sequences"):
        Monitor.fit(Reader("lstm").network(), [], some_groups(), mode="marble")
    with pytest.raises(BadInput, match="k=0"):
        marble(Reader("lstm")).score([1, 2, 3], k="final")


@pytest.mark.parametrize(
    "change",
    [
        {"below": torch.zeros},
        {"keys": torch.full},
        {"eta": lambda old: old * 3},
        {"first": lambda old: old.flip(0)},
        {"dual": lambda old: old * torch.nan},
        {"centre": lambda old: old[:-1]},
        {"unseen": lambda old: 1.5},
        {"states": lambda old: 10**6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_damaged_arrays_are_refused(change: dict[str, Any]) -> None:
    tree: MarbleScores = marble(Reader("lstm"), theta=0.2).tree
    width = len(tree.centre)
    assert checked_marble(tree, width) is tree
    ((name, damage),) = change.items()
    old = getattr(tree, name)
    if damage is torch.zeros:
        new = torch.zeros_like(old)
    elif damage is torch.full:
        new = torch.full_like(old, 3)
    else:
        new = damage(old)
    altered: dict[str, Any] = {name: new}
    with pytest.raises(ValueError, match=r"holds|states|outside|order|consecutive|cycle"):
        checked_marble(replace(tree, **altered), width)


def test_a_stored_model_with_other_settings_is_refused(tmp_path: Path) -> None:
    module = Reader("lstm")
    marble(module).save(tmp_path)
    file = tmp_path / "monitor.json"
    content = json.loads(file.read_text())
    content["marble"]["refinement"]["theta"] = "0.6"
    content["digest"] = digest(content)
    file.write_text(json.dumps(content))
    with pytest.raises(HoldfastError, match="damaged"):
        Monitor.load(tmp_path, module.network())

"""The monitor as an estimator of scikit-learn."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import holdfast as hf
from holdfast.datasets import helpdesk
from holdfast.errors import BadInput
from holdfast.monitor import MonitorEstimator

NET = helpdesk.network()
MUTATION = hf.monitor.Groups.of_sets(helpdesk.sets(), vocabulary=NET.vocabulary)
TEXTS = helpdesk.sentences("train").text[:8]


def test_scores_are_those_of_the_monitor_and_decide_outliers() -> None:
    estimator = MonitorEstimator(NET, MUTATION, threshold=0.9).fit(TEXTS)
    monitor = hf.Monitor.fit(NET, TEXTS, MUTATION)
    wanted = [min(score.value for score in monitor.score(text, "final")) for text in TEXTS]
    assert estimator.score_samples(TEXTS).tolist() == pytest.approx(wanted)
    assert estimator.predict(TEXTS).tolist() == [-1 if score < 0.9 else 1 for score in wanted]
    assert (estimator.fit_predict(TEXTS) == estimator.predict(TEXTS)).all()
    assert np.isin(estimator.predict(TEXTS), (-1, 1)).all()


def test_the_conventions_of_scikit_learn_hold() -> None:
    estimator = MonitorEstimator(NET, MUTATION, threshold=0.7, k=1)
    assert set(estimator.get_params()) == {"net", "mutation", "mode", "k", "threshold", "seed"}
    copied = clone(estimator.fit(TEXTS))
    assert not hasattr(copied, "monitor_")
    assert copied.get_params()["threshold"] == 0.7
    assert copied.set_params(threshold=0.2).threshold == 0.2
    with pytest.raises(NotFittedError):
        copied.predict(TEXTS)
    assert copied.fit(TEXTS).score_samples(TEXTS) == pytest.approx(estimator.score_samples(TEXTS))
    with pytest.raises(BadInput, match="between 0 and 1"):
        MonitorEstimator(NET, MUTATION, threshold=2).fit(TEXTS)
    with pytest.raises(BadInput, match="has no score"):
        estimator.set_params(k=50).score_samples(TEXTS)

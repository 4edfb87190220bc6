"""The model is asked in a supervised process outside searches too: what it does there costs an answer, and never the run."""

import math
import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.execution.asking import NotAnswered, query_in_subprocess

X = torch.rand(4, 3)


def network(fault: str = "", name: str = "model") -> hf.Network:
    def model(
        x: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        if (x[:, 0] > 0.5).any():
            if fault == "hangs":
                time.sleep(600)
            elif fault == "crashes":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "interrupts":
                raise KeyboardInterrupt
            elif fault == "raises":
                raise ValueError("no such word")
        return np.full((len(x), 1), os.getpid(), dtype=np.float64)

    return hf.Network.from_callable(model, name=name, shape=(3,), fingerprint=fault or "none")


def asked(net: hf.Network, x: Tensor) -> int:
    return int(net(x)[0, 0])


LOW, HIGH = torch.zeros(2, 3), torch.ones(2, 3)


def test_another_process_answers_and_its_questions_are_counted() -> None:
    net, other = network(), network(name="other")
    with query_in_subprocess():
        first = asked(net, LOW)
        assert first != os.getpid() % 2**24
        assert asked(net, HIGH) == first, "one process for all questions"
        asked(other, LOW)  # made after the copy was
    assert net.queries == 4
    assert asked(net, LOW) == int(np.float32(os.getpid())), "afterwards the network is asked here again"


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        ("crashes", NotAnswered, "SIGKILL"),
        ("interrupts", hf.errors.HoldfastError, "raised KeyboardInterrupt"),
        ("raises", ValueError, "no such word"),
    ],
)
def test_what_the_model_does_there_is_an_error_here(fault: str, error: type[Exception], why: str) -> None:
    net = network(fault)
    with query_in_subprocess():
        with pytest.raises(error, match=why):
            net(HIGH)
        assert net(LOW).shape == (2, 1), "the next question is answered"


def test_a_model_that_hangs_is_given_up_when_the_time_is_over() -> None:
    net = network("hangs")
    with query_in_subprocess(0.5):
        with pytest.raises(NotAnswered, match="when its time limit was reached"):
            net(HIGH)
        with pytest.raises(NotAnswered, match="no time left"):
            net(LOW)
    assert math.isfinite(asked(net, LOW))

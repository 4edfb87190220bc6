"""Deadlines hold where they are set, and an inner one never outlives an outer one."""

import math
import time

import pytest

from holdfast import clock


def test_a_deadline_holds_inside_and_ends_with_its_block() -> None:
    assert clock.deadline() == math.inf
    assert not clock.passed()
    soon = time.monotonic() + 100
    with clock.within(soon):
        assert clock.deadline() == soon
        with clock.within(soon + 1):
            assert clock.deadline() == soon
        with clock.within(soon - 200):
            assert clock.passed()
        assert not clock.passed()
    with pytest.raises(ZeroDivisionError), clock.within(0.0):
        raise ZeroDivisionError
    assert clock.deadline() == math.inf

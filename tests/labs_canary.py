"""Tests that must fail. The labs' grader runs them after a student's code: where one passes, the checks were changed."""

import numpy as np
import pytest


def test_canary_assert():
    """A wrong comparison."""
    one = 1
    assert one == 2


def test_canary_raises():
    """Nothing is raised."""
    with pytest.raises(ValueError):
        pass


def test_canary_approx():
    """Far from it."""
    assert pytest.approx(2.0) == 1.0


@pytest.mark.parametrize("name", ["assert_allclose", "assert_array_equal", "assert_equal", "assert_array_almost_equal"])
def test_canary_numpy(name):
    """Arrays that differ."""
    getattr(np.testing, name)(np.array([1.0, 2.0]), np.array([1.0, 3.0]))


def test_canary_functions():
    """What tests ask with."""
    assert np.allclose([1.0], [2.0]) or np.array_equal([1], [2]) or all([False]) or isinstance(1, str) or bool(0)

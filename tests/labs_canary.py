"""Tests that must fail. The labs' grader runs them after a student's code: where one passes, the checks were changed."""  # noqa: E501

import numpy as np
import pytest

COMPARISONS = (
    "assert_allclose",
    "assert_array_equal",
    "assert_equal",
    "assert_array_almost_equal",
    "assert_array_less",
)


def test_canary_assert():
    """A wrong comparison."""
    one = 1
    assert one == 2


def test_canary_raises():
    """Nothing is raised."""
    with pytest.raises(ValueError):
        pass


def test_canary_numbers():
    """Passes, and so gives it away, as soon as one of NumPy's or pytest's comparisons finds 3 equal to 2."""
    for name in COMPARISONS:
        try:
            getattr(np.testing, name)(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
        except AssertionError:
            continue
        return
    equal = pytest.approx(2.0) == 3.0 or np.allclose([3.0], [2.0]) or np.array_equal([3], [2])
    assert equal or all([False]) or isinstance(3, str) or sorted([3, 2]) == [3, 2]

"""The lab tasks of phase 12: what is scored, and a plan that scores on traffic which nobody has seen."""

import pytest

from minifer.apps.simulate.capstone import BASELINE, Plan, goodput, plan, score
from minifer.metrics import RequestMetrics

REQUESTS = 100
"""A third of a minute of traffic, so that a test takes less than a second."""

CHECK_LIMIT_S = 10.0
"""`check` in a notebook gives these tests longer than others: each runs a whole fleet."""

BETTER = 1.2
"""Goodput over the baseline's that each piece of hidden traffic must show. A plan without a serious fault has more."""


@pytest.mark.task("12.1")
def test_only_kept_promises_count(rng):
    """All of them, at their limits too, per second of the run."""
    ok = RequestMetrics(ttft=0.5, tpot=0.05, e2e=1.0, output_tokens=11)
    late, slow = (
        RequestMetrics(ttft=2.1, tpot=0.05, output_tokens=11),
        RequestMetrics(ttft=0.5, tpot=0.11, output_tokens=9),
    )
    edge = RequestMetrics(ttft=2.0, tpot=0.1, output_tokens=3)
    slo, n = {"ttft": 2000.0, "tpot": 100.0}, int(rng.integers(3, 9))
    assert goodput([ok] * n + [late, slow, edge], 4.0, slo) == pytest.approx((n + 1) / 4)
    assert goodput([ok] * n + [late, slow, edge], 4.0, {"ttft": 3000.0}) == pytest.approx((n + 3) / 4)
    assert goodput([late, slow], 4.0, slo) == 0


@pytest.mark.task("12.1")
def test_what_has_no_token_kept_nothing():
    """An answer of one token has no TPOT to break; one without a token has nothing, and counts for nothing."""
    one, none = RequestMetrics(ttft=0.5, output_tokens=1), RequestMetrics(output_tokens=0)
    slo = {"ttft": 2000.0, "tpot": 100.0}
    assert goodput([one, none, none], 0.5, slo) == 2.0
    assert goodput([none], 0.5, {"tpot": 100.0}) == 0


@pytest.mark.task("12.1")
def test_no_time_no_goodput():
    """Nothing is divided by zero."""
    assert goodput([], 0.0, {"ttft": 1.0}) == 0
    assert goodput([RequestMetrics(ttft=0.0, output_tokens=1)], 0.0, {"ttft": 1.0}) == 0


@pytest.fixture
def hidden(rng):
    """Three seeds that the grader drew, and what the baseline reaches on them."""
    seeds = [f"hidden {number}" for number in rng.integers(1 << 30, size=3)]
    return [(seed, score(BASELINE, seed, REQUESTS).goodput) for seed in seeds]


@pytest.mark.task("12.2")
def test_the_plan_keeps_the_rules():
    """It is a Plan, and the same each time."""
    assert isinstance(plan(), Plan)
    assert (plan().chunk, plan().seats, plan().block_size) == (plan().chunk, plan().seats, plan().block_size)


@pytest.mark.task("12.2")
def test_better_on_hidden_traffic(hidden):
    """More goodput than the baseline on the first seed."""
    seed, baseline = hidden[0]
    found = score(plan(), seed, REQUESTS).goodput
    assert found > BETTER * baseline


@pytest.mark.task("12.2")
def test_better_on_other_hidden_traffic(hidden):
    """And on the second: no luck."""
    seed, baseline = hidden[1]
    found = score(plan(), seed, REQUESTS).goodput
    assert found > BETTER * baseline


@pytest.mark.task("12.2")
def test_better_on_the_last_hidden_traffic(hidden):
    """And on the third."""
    seed, baseline = hidden[2]
    found = score(plan(), seed, REQUESTS).goodput
    assert found > BETTER * baseline

"""Ceilings: what follows from two numbers, and that the probes give numbers at all."""

import math

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from minifer.roofline import Ceilings, measure_ceilings, probes
from minifer.roofline.probes import usable_cores


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch):
    """The speed is of no interest here."""
    monkeypatch.setattr(probes, "GEMM_SIZE", 64)
    monkeypatch.setattr(probes, "LEAST_BYTES", 1 << 20)


TEN = Ceilings(read_bytes_per_s=10e9, flops_per_s=100e9, working_set_bytes=1)


def test_the_slower_one_counts():
    """At the ridge both take equally long; on either side one of them decides."""
    assert TEN.ridge == 10
    assert TEN.least_seconds(100e9, 10e9) == pytest.approx(1.0)
    assert TEN.least_seconds(100e9, 9e9) == pytest.approx(1.0)
    assert TEN.least_seconds(90e9, 10e9) == pytest.approx(1.0)
    assert [TEN.limiter(flops, 1e9) for flops in (9e9, 11e9)] == ["reading", "arithmetic"]


def test_drift_is_the_larger_change_with_its_sign():
    """-20 % of reading outweighs +5 % of arithmetic."""
    assert TEN.drift(Ceilings(8e9, 105e9, 1)) == pytest.approx(-0.2)
    assert TEN.drift(TEN) == 0


def test_probes_measure_something():
    """Finite, positive, and on the working set that was asked for; no claim about the speed."""
    found = measure_ceilings(1 << 22, seconds_each=0.01)
    assert found.working_set_bytes == 1 << 22
    assert math.isfinite(found.ridge)
    assert found.read_bytes_per_s > 0
    assert found.flops_per_s > 0


def test_the_probes_have_all_cores():
    """However few threads the process computes with, and it has those again afterwards."""
    with threadpool_limits(1, "blas"):
        assert measure_ceilings(1 << 20, seconds_each=0.01).threads == usable_cores()
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} <= {1}
    assert measure_ceilings(1 << 20, threads=1, seconds_each=0.01).threads == 1


def test_a_memory_limit_bounds_the_working_set():
    """A quarter of the limit, even if the model is larger."""
    assert measure_ceilings(1 << 40, memory_limit_bytes=1 << 24, seconds_each=0.01).working_set_bytes == 1 << 22

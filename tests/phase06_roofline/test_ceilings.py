"""Ceilings: what is measured, how it is read off between two sizes, and that it is kept."""

import json
import math
from dataclasses import asdict
from itertools import pairwise

import pytest

from minifer.errors import MiniferError
from minifer.roofline import ceilings
from minifer.roofline.ceilings import Machine, working_sets
from minifer.roofline.probes import fastest, gemm_rate, read_rate, touched

SMALL = Machine(
    cache_bytes=1 << 20,
    reads=[
        {"threads": 1, "bytes": 1 << 10, "bytes_per_s": 80e9},
        {"threads": 1, "bytes": 1 << 20, "bytes_per_s": 40e9},
        {"threads": 2, "bytes": 1 << 10, "bytes_per_s": 150e9},
    ],
    gemms=[{"threads": 1, "flops_per_s": 90e9}, {"threads": 2, "flops_per_s": 170e9}],
    call_s={},
    cuda=None,
    conditions={},
)


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch):
    """The speed is of no interest here."""
    monkeypatch.setattr("minifer.roofline.probes.LEAST_BYTES", 1 << 20)


def nobody(what: str, done: int, total: int) -> None:
    """Watches no progress."""


def test_reading_is_looked_up_between_the_sizes_on_a_logarithmic_scale():
    """32 KiB is half way from 1 KiB to 1 MiB; outside, the nearest measurement holds."""
    assert SMALL.read_bytes_per_s(1 << 15, 1) == pytest.approx(60e9)
    assert SMALL.read_bytes_per_s(1 << 10, 2) == 150e9
    assert SMALL.read_bytes_per_s(1, 1) == 80e9
    assert SMALL.read_bytes_per_s(1 << 40, 1) == 40e9
    assert SMALL.flops_per_s(2) == 170e9


def test_working_sets_reach_four_caches_or_the_limit():
    assert working_sets(300 << 20, 1 << 40)[-1] == 1200 << 20
    assert working_sets(300 << 20, 1 << 30)[-1] == 1 << 30
    sizes = working_sets(300 << 20, 1 << 40)
    assert sizes[0] == 32 << 10
    assert all(a < b <= 4 * a for a, b in pairwise(sizes))
    assert working_sets(1, 1) == [32 << 10]


def test_a_sweep_measures_every_size_for_one_thread_and_for_all(monkeypatch):
    monkeypatch.setattr(ceilings, "last_level_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr(ceilings, "usable_cores", lambda: 2)
    monkeypatch.setattr(ceilings, "GEMM_SIZE", 64)
    seen = []
    found = ceilings.measure(1 << 30, lambda what, done, total: seen.append((done, total)), {"a": 1}, limit_s=0.001)
    sizes = working_sets(1 << 16, 1 << 40)
    assert [(r["threads"], r["bytes"]) for r in found.reads] == [(t, s) for t in (1, 2) for s in sizes]
    assert all(math.isfinite(r["bytes_per_s"]) and r["bytes_per_s"] > 0 for r in found.reads)
    assert {g["threads"] for g in found.gemms} == {1, 2}
    assert all(0 < seconds < 1e-3 for seconds in found.call_s.values())
    assert seen[-1][0] == seen[-1][1] == len(found.reads) + len(found.gemms)
    assert Machine(**json.loads(json.dumps(asdict(found)))) == found


def test_ceilings_are_kept_per_machine(monkeypatch, tmp_path):
    """Measured once for a key; again for another key, when asked to, or when the file is damaged."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path))
    count = []
    monkeypatch.setattr(ceilings, "measure", lambda *_: count.append(1) or SMALL)

    def get(cpu: str, fresh: bool = False) -> Machine:
        return ceilings.load_or_measure({"cpu": cpu}, {"load": 0.1}, 1 << 30, nobody, fresh=fresh)

    assert get("a") == get("a") == SMALL
    assert len(count) == 1
    get("b")
    assert len(count) == 2
    get("a", fresh=True)
    assert len(count) == 3
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:40])
    get("a")
    assert len(count) == 4


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path / "file" / "folder"))
    monkeypatch.setattr(ceilings, "measure", lambda *_: SMALL)
    with pytest.raises(MiniferError, match="ceilings-"):
        ceilings.load_or_measure({}, {}, 1 << 30, nobody, fresh=False)


def test_a_rate_counts_what_was_really_read():
    """Every part of the memory is used: 3 matrices of 5 x 7 for each of 2 threads, and no byte twice."""
    calls = []

    def timed(split, threads, limit_s):
        calls.append((len(split(1)), len(split(threads))))
        return 2.0, "a way"

    memory = touched(4 * (3 * 2 * 5 * 7 + 11))  # 11 numbers are left over
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minifer.roofline.probes.fastest", timed)
        patch.setattr("minifer.roofline.probes.LEAST_BYTES", 0)
        rate, way = read_rate(memory, 2, 0.1, shape=(5, 7))
        assert (rate, way) == (4 * 3 * 2 * 5 * 7 / 2.0, "a way")
        assert gemm_rate(3, 4, 5, 2, 0.1)[0] == 2 * 3 * 4 * 5 / 2.0
    assert calls == [(1, 2), (1, 2)]


def test_the_faster_way_counts():
    """One call that does everything, or two at once that have nothing to do."""
    import time

    slow_whole = fastest(lambda n: [lambda: time.sleep(0.004 if n == 1 else 0)] * n, 2, 0.02)
    assert slow_whole[1] == "one BLAS thread per core"
    slow_parts = fastest(lambda n: [lambda: time.sleep(0 if n == 1 else 0.004)] * n, 2, 0.02)
    assert slow_parts[1] == "BLAS threads"


def test_a_models_shapes_have_rates_of_their_own():
    found = ceilings.model_shape_rates({"qkv": (24, 16), "head": (61, 16)}, 4, 1 << 16, 2, limit_s=0.001)
    assert set(found) == {"qkv", "head"}
    assert all(rate > 0 for rates in found.values() for rate in rates.values())


def test_without_a_gpu_there_are_no_ceilings_of_one():
    from minifer.device import why_no_gpu
    from minifer.roofline import cuda

    if why_no_gpu() is None:
        pytest.skip("this machine has a GPU")
    assert cuda.measure() is None


@pytest.mark.gpu
def test_a_gpus_ceilings_stand_in_their_order():
    """16-bit products are faster than float32, and reading is faster than nothing; no claim about the speed."""
    from minifer.roofline import cuda

    found = cuda.measure()
    assert found is not None
    rates = found["flops_per_s"]
    assert set(rates) == {"float32", "tf32", "float16", "bfloat16"}
    assert min(rates["float16"], rates["bfloat16"], rates["tf32"]) > rates["float32"]
    assert found["read_bytes_per_s"] > 0
    assert 0 < found["launch_s"] < 1e-3

"""The lab tasks of phase 06: FLOPs and bytes counted pair by pair, and the time they take at least."""

import numpy as np
import pytest

from minifer.model.config import ModelConfig
from minifer.model.cost import Work, attention_cost, step_cost
from minifer.roofline.predict import Roof, kv_traffic, predict_ops

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 4, 5


def config(window=None):
    """Nine query heads on three kv heads."""
    return ModelConfig(100, 36, 50, LAYERS, HEADS, KV_HEADS, HEAD_DIM, 64, 1e-5, 1e4, sliding_window=window)


def pairs_by_hand(work, window):
    """Every query and every key, one at a time."""
    queries = range(work.context - work.length, work.context)
    return sum(1 for q in queries for key in range(work.context) if key <= q and key > q - window)


@pytest.mark.task("6.1")
def test_attention_flops_are_pairs(rng):
    """Prefill, a chunk behind others, decode: 4 FLOPs for each head, pair and dimension."""
    for length, context in ((7, 7), (3, 9), (1, 12), (1, 1), (int(rng.integers(2, 9)), 20)):
        work = Work(length, context)
        want = 4 * HEADS * HEAD_DIM * pairs_by_hand(work, 64)
        cost = attention_cost(config(), work, 4)
        assert (cost.calls, cost.flops) == (1, want)


@pytest.mark.task("6.1")
def test_attention_bytes_are_read_by_kv_heads(rng):
    """Queries in and output out by query heads, keys and values by kv heads; two bytes a number or four."""
    length, context = int(rng.integers(1, 5)), int(rng.integers(6, 20))
    for a in (2, 4):
        want = (2 * length * HEADS * HEAD_DIM + 2 * context * KV_HEADS * HEAD_DIM) * a
        assert attention_cost(config(), Work(length, context), a).bytes == want


@pytest.mark.task("6.1")
def test_a_window_bounds_both():
    """Before, across and beyond the window's width."""
    for length, context in ((1, 3), (1, 30), (6, 6), (5, 30), (12, 12), (4, 6)):
        work = Work(length, context)
        cost = attention_cost(config(window=5), work, 4)
        assert cost.flops == 4 * HEADS * HEAD_DIM * pairs_by_hand(work, 5)
        keys = min(context, 5 + length - 1)
        assert cost.bytes == (2 * length * HEADS * HEAD_DIM + 2 * keys * KV_HEADS * HEAD_DIM) * 4


@pytest.mark.task("6.2")
def test_each_operation_takes_the_longer_of_two(rng):
    """Work over peak, bytes over bandwidth, per operation and not in sum."""
    roof = Roof("made up", float(rng.uniform(1e9, 9e9)), float(rng.uniform(1e9, 2e9)))
    work = [Work(1, 10), Work(30, 30)]
    found, costs = predict_ops(config(), iter(work), roof), step_cost(config(), work)
    assert list(found) == list(costs)
    for name, cost in costs.items():
        op = found[name]
        assert op.cost == cost
        np.testing.assert_allclose([op.compute_s, op.bandwidth_s], [cost.flops / roof.flops_per_s,
                                                                    cost.bytes / roof.read_bytes_per_s])  # fmt: skip
        assert op.roofline_s == max(op.compute_s, op.bandwidth_s)
        assert op.overhead_s == 0


@pytest.mark.task("6.2")
def test_sizes_are_passed_on():
    """Quantised weights read less; more logits cost more."""
    roof = Roof("made up", 1e12, 1e9)
    plain = predict_ops(config(), [Work(8, 8)], roof)
    small = predict_ops(config(), [Work(8, 8)], roof, weight_bytes=0.5, num_logits=8)
    assert small["down"].bandwidth_s < plain["down"].bandwidth_s
    assert small["head"].compute_s == 8 * plain["head"].compute_s
    assert small["attention"] == plain["attention"]


@pytest.mark.task("6.3")
def test_kv_traffic_by_hand(rng):
    """Two arrays, every layer, kv heads."""
    context = int(rng.integers(1, 60))
    assert kv_traffic(config(), context) == 2 * LAYERS * context * KV_HEADS * HEAD_DIM * 4
    assert kv_traffic(config(), context, activation_bytes=2) == 2 * LAYERS * context * KV_HEADS * HEAD_DIM * 2


@pytest.mark.task("6.3")
def test_kv_traffic_of_nothing_and_of_a_window():
    """Context 0 reads nothing; a window reads no more than its width."""
    assert kv_traffic(config(), 0) == 0
    assert kv_traffic(config(window=5), 30) == kv_traffic(config(), 5)
    assert kv_traffic(config(window=5), 3) == kv_traffic(config(), 3)

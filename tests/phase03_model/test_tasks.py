"""The lab tasks of phase 03: each function against float64, a loop or a law, on shapes that hide nothing (9 / 3)."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from minifer.model.transformer import forward
from minifer.ops import reference as ops


def normal(rng, *shape):
    """Float32 numbers."""
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.task("3.1")
def test_softmax_is_its_formula(rng):
    """The last axis, also of three, in the dtype that came in."""
    x = normal(rng, 3, 4, 7)
    want = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True)
    got = ops.softmax(x)
    assert got.dtype == np.float32
    assert got.shape == x.shape, f"expected {x.shape}, got {got.shape}"
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.task("3.1")
def test_softmax_survives_large_numbers(rng):
    """Adding a thousand changes nothing."""
    x = rng.integers(-8, 8, (5, 6)).astype(np.float32)
    np.testing.assert_allclose(ops.softmax(x + 1024), ops.softmax(x), rtol=1e-5)
    assert np.isfinite(ops.softmax(x * 1e4)).all()


@pytest.mark.task("3.1")
def test_softmax_of_nothing_visible_is_zero():
    """A row of -inf has no probabilities to give."""
    x = np.array([[0.0, -np.inf], [-np.inf, -np.inf]], dtype=np.float32)
    assert ops.softmax(x).tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.task("3.2")
def test_rms_norm_is_its_formula(rng):
    """A large eps shows where it stands."""
    x, weight = normal(rng, 5, 12), normal(rng, 12)
    for eps in (1e-5, 0.7):
        want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + eps) * weight
        got = ops.rms_norm(x, weight, eps)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.task("3.2")
def test_rms_norm_measures_each_row_by_itself(rng):
    """Any number of axes before the last; a row twice as long comes out the same; the argument is left alone."""
    x, weight = normal(rng, 2, 3, 8), normal(rng, 8)
    before = x.copy()
    got = ops.rms_norm(x, weight, 1e-6)
    assert got.shape == x.shape, f"expected {x.shape}, got {got.shape}"
    np.testing.assert_allclose(ops.rms_norm(x * np.float32(2), weight, 4e-6), got, rtol=1e-5)
    np.testing.assert_allclose(ops.rms_norm(x[1, 2], weight, 1e-6), got[1, 2], rtol=1e-5)
    np.testing.assert_array_equal(x, before)


@pytest.mark.task("3.3")
def test_rope_turns_half_split_pairs(rng):
    """Pair i is (i, i + D/2), as complex numbers."""
    x = normal(rng, 4, 3, 8)
    angles = rng.uniform(-3, 3, (4, 4))
    got = ops.rope(x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[:, None, :]
    assert got.shape == x.shape, f"expected {x.shape}, got {got.shape}"
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


@pytest.mark.task("3.3")
def test_rope_sees_only_distances(rng):
    """The product of a query and a key depends on how far apart they are, and lengths stay."""
    q, k = normal(rng, 1, 1, 8), normal(rng, 1, 1, 8)
    frequencies = ops.rope_frequencies(8, 10000.0)

    def at(x, position):
        return ops.rope(x, *ops.rope_table(np.array([position]), frequencies))[0, 0]

    assert math.isclose(at(q, 9) @ at(k, 4), at(q, 105) @ at(k, 100), rel_tol=1e-3, abs_tol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(at(q, 9)), np.linalg.norm(q), rtol=1e-5)


@pytest.mark.task("3.4")
def test_swiglu_is_its_formula(rng):
    """silu of the gate, not of the up."""
    gate, up = normal(rng, 5, 6), normal(rng, 5, 6)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(ops.swiglu(gate, up), wide / (1 + np.exp(-wide)) * up, rtol=1e-5)


@pytest.mark.task("3.4")
def test_swiglu_survives_large_numbers():
    """No overflow at 1000, on either side."""
    extreme = np.array([-1000.0, 1000.0, 0.0], dtype=np.float32)
    np.testing.assert_allclose(ops.swiglu(extreme, np.ones_like(extreme)), [0.0, 1000.0, 0.0], atol=1e-6)


def attention_by_loops(q, k, v, window):
    """One query, one head and one key at a time: k, v `[S, K, D]`."""
    out = np.zeros(q.shape)
    first = k.shape[0] - q.shape[0]
    for t, h in np.ndindex(q.shape[:2]):
        kv = h // (q.shape[1] // k.shape[1])
        seen = range(max(0, first + t - window + 1), first + t + 1)
        scores = np.array([q[t, h] @ k[s, kv] / math.sqrt(q.shape[2]) for s in seen])
        p = np.exp(scores - scores.max())
        out[t, h] = sum(w * v[s, kv] for w, s in zip(p / p.sum(), seen, strict=True))
    return out


def attention_case(rng, length, context, cuts, window):
    """What `attention` gives in pieces, and what loops give."""
    q, k, v = normal(rng, length, 9, 4), normal(rng, context, 3, 4), normal(rng, context, 3, 4)
    borders = [0, *cuts, context]
    keys = [k[a:b].transpose(1, 2, 0) for a, b in pairwise(borders)]
    values = [v[a:b].transpose(1, 0, 2) for a, b in pairwise(borders)]
    return ops.attention(q, keys, values, window), attention_by_loops(q, k, v, window)


@pytest.mark.task("3.5")
def test_attention_of_a_prompt_is_causal(rng):
    """All tokens at once, nine query heads on three kv heads."""
    got, want = attention_case(rng, 6, 6, [], 99)
    assert got.shape == want.shape, f"expected {want.shape}, got {got.shape}"
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.task("3.5")
def test_attention_of_the_last_tokens_in_pieces(rng):
    """Two new tokens behind five old ones, in three pieces."""
    np.testing.assert_allclose(*attention_case(rng, 2, 7, [2, 3], 99), atol=1e-5)
    np.testing.assert_allclose(*attention_case(rng, 1, 5, [4], 99), atol=1e-5)


@pytest.mark.task("3.5")
def test_attention_keeps_to_its_window(rng):
    """At most three keys each."""
    np.testing.assert_allclose(*attention_case(rng, 5, 8, [4], 3), atol=1e-5)


class Script:
    """A room that writes down who calls it with what."""

    def __init__(self):
        self.calls = []

    def embed(self, embedding, tokens):
        self.calls.append(("embed", embedding, tokens))
        return 100

    def rope_table(self, positions):
        self.calls.append(("rope_table", positions))
        return "table"

    def attention_block(self, x, layer, rope_table, batch, store, index):  # noqa: ARG002
        self.calls.append(("attention", x, layer, rope_table, store, index))
        return x * 2 + 1

    def mlp_block(self, x, layer):
        self.calls.append(("mlp", x, layer))
        return x * 3

    def head(self, x, weights, rows):  # noqa: ARG002
        self.calls.append(("head", x, rows))
        return x + 7


@pytest.mark.task("3.6")
def test_forward_calls_the_room_in_order():
    """Embedding, each layer's two blocks, head; each block is handed what the one before gave."""
    room = Script()
    weights = SimpleNamespace(embedding="E", layers=["L0", "L1"])
    batch = SimpleNamespace(tokens="T", positions="P", logit_rows="R")
    assert forward(weights, batch, "S", room) == ((100 * 2 + 1) * 3 * 2 + 1) * 3 + 7
    assert sorted(c[0] for c in room.calls[:2]) == ["embed", "rope_table"]
    assert room.calls[2:] == [
        ("attention", 100, "L0", "table", "S", 0),
        ("mlp", 201, "L0"),
        ("attention", 603, "L1", "table", "S", 1),
        ("mlp", 1207, "L1"),
        ("head", 3621, "R"),
    ]


@pytest.mark.task("3.6")
def test_forward_makes_one_rope_table():
    """Also for three layers; and a model without layers is embedding and head."""
    for layers in (0, 3):
        room = Script()
        weights = SimpleNamespace(embedding="E", layers=["L"] * layers)
        forward(weights, SimpleNamespace(tokens="T", positions="P", logit_rows="R"), "S", room)
        assert [c for c in room.calls if c[0] == "rope_table"] == [("rope_table", "P")]
        assert ("embed", "E", "T") in room.calls
        assert len(room.calls) == 3 + 2 * layers

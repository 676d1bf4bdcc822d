"""Phase 03: the textbook functions against float64, and the edges at which engines have gone wrong."""

import math

import numpy as np
import pytest

from minifer.errors import UnsupportedError
from minifer.ops import reference as ref

RNG = np.random.default_rng(7)
OPERATOR = {"rtol": 1e-4, "atol": 1e-5}


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_softmax_against_float64(scale):
    x = f32(5, 7) * np.float32(scale)
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(ref.softmax(x), e / e.sum(-1, keepdims=True), **OPERATOR)
    assert ref.softmax(x).dtype == np.float32


def test_softmax_of_a_fully_masked_row_is_zeros():
    x = np.array([[-np.inf] * 4, [0, -np.inf, 0, -np.inf]], dtype=np.float32)
    np.testing.assert_array_equal(ref.softmax(x), [[0, 0, 0, 0], [0.5, 0, 0.5, 0]])


def test_rms_norm_against_float64():
    x, w, eps = f32(3, 40), f32(40), 3e-5
    x64 = x.astype(np.float64)
    want = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + eps) * w
    np.testing.assert_allclose(ref.rms_norm(x, w, eps), want, **OPERATOR)


def test_rms_norm_reads_its_epsilon():
    x = np.full((1, 4), 1e-3, dtype=np.float32)
    np.testing.assert_allclose(ref.rms_norm(x, np.ones(4, np.float32), 1e-5)[0, 0], 1e-3 / math.sqrt(1e-6 + 1e-5))


def test_linear_is_x_times_w_transposed():
    x, w, b = f32(3, 5), f32(7, 5), f32(7)
    want = np.einsum("ti,oi->to", x.astype(np.float64), w) + b
    np.testing.assert_allclose(ref.linear(x, w, b), want, **OPERATOR)


def test_swiglu_against_float64_without_overflow():
    gate = np.array([[-1e4, -100.0, -1.0, 0.0, 1.0, 100.0, 1e4]], dtype=np.float32)
    up = f32(1, 7)
    with np.errstate(over="ignore"):
        want = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(ref.swiglu(gate, up), want, **OPERATOR)


def test_rope_rotates_half_split_pairs():
    """Pair i is (x[i], x[i + D/2]); a quarter turn takes (1, 0) to (0, 1)."""
    x = np.zeros((1, 1, 6), dtype=np.float32)
    x[0, 0, 1] = 1
    cos, sin = np.array([[1, 0, 1]], np.float32), np.array([[0, 1, 0]], np.float32)
    np.testing.assert_array_equal(ref.rope(x, cos, sin)[0, 0], [0, 0, 0, 0, 1, 0])


def test_rope_depends_only_on_distance():
    q, k = f32(1, 1, 8), f32(1, 1, 8)
    frequencies = ref.rope_frequencies(8, 100.0)

    def score(i: int, j: int) -> float:
        turned = [ref.rope(x, *ref.rope_table(np.array([p]), frequencies)) for x, p in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    assert score(3, 1) == pytest.approx(score(1003, 1001), abs=1e-4)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-2)


def test_rope_angles_are_exact_far_out():
    """At position 8,000 a float32 product of position and frequency is off by 0.0005 radians."""
    frequencies = ref.rope_frequencies(64, 100_000.0)
    cos, sin = ref.rope_table(np.array([8191]), frequencies)
    exact = [math.cos(8191 * 100_000.0 ** (-2 * i / 64)) for i in range(32)]
    np.testing.assert_allclose(cos[0], exact, atol=1e-6)
    assert cos.dtype == sin.dtype == np.float32


def test_llama3_frequencies_by_hand():
    """Turns in the old context: 64 w / 2 pi. Below `low` divided by the factor, above `high` kept, blended between."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}  # fmt: skip
    plain = ref.rope_frequencies(8, 1000.0)
    got = ref.rope_frequencies(8, 1000.0, scaling)
    turns = 64 * plain / (2 * math.pi)  # 10.2, 1.81, 0.32, 0.057
    assert got[0] == plain[0]
    assert got[2] == plain[2] / 8
    assert got[3] == plain[3] / 8
    smooth = (turns[1] - 1) / 3
    assert got[1] == pytest.approx((1 - smooth) * plain[1] / 8 + smooth * plain[1])


def test_other_rope_scalings():
    plain = ref.rope_frequencies(4, 100.0)
    np.testing.assert_allclose(ref.rope_frequencies(4, 100.0, {"rope_type": "linear", "factor": 2.0}), plain / 2)
    factors = {"rope_type": "factors", "factors": (1.0, 5.0)}
    np.testing.assert_allclose(ref.rope_frequencies(4, 100.0, factors), plain / [1, 5])
    with pytest.raises(UnsupportedError, match="yarn"):
        ref.rope_frequencies(4, 100.0, {"rope_type": "yarn", "factor": 4.0})


def attention_float64(q, k_KDS, v_KSD, window):
    """One query, one head, one key at a time."""
    length, heads, head_dim = q.shape
    context, group = k_KDS.shape[-1], heads // k_KDS.shape[0]
    out = np.zeros(q.shape)
    for t in range(length):
        position = context - length + t
        seen = [j for j in range(context) if position - window < j <= position]
        for h in range(heads):
            s = np.array([q[t, h].astype(np.float64) @ k_KDS[h // group, :, j] for j in seen]) / math.sqrt(head_dim)
            p = np.exp(s - s.max())
            out[t, h] = (p / p.sum()) @ v_KSD[h // group, seen].astype(np.float64)
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (8, 2), (4, 1), (6, 6)])
@pytest.mark.parametrize(("length", "context", "window"), [(1, 1, 99), (5, 5, 99), (3, 11, 99), (1, 11, 4), (6, 11, 4)])
def test_attention_against_float64(heads, kv_heads, length, context, window):
    q, k, v = f32(length, heads, 6), f32(kv_heads, 6, context), f32(kv_heads, context, 6)
    want = attention_float64(q, k, v, window)
    np.testing.assert_allclose(ref.attention(q, [k], [v], window), want, **OPERATOR)
    cut = context // 3
    pieces = ([k[:, :, :cut], k[:, :, cut:]], [v[:, :cut], v[:, cut:]]) if cut else ([k], [v])
    np.testing.assert_allclose(ref.attention(q, *pieces, window), want, **OPERATOR)


def test_window_of_w_means_the_token_and_w_minus_1_before():
    seen = ref.causal_mask(3, 6, window=3)
    assert seen.sum(-1).tolist() == [3, 3, 3]
    assert np.flatnonzero(seen[-1]).tolist() == [3, 4, 5]
    assert ref.causal_mask(6, 6, window=3).sum(-1).tolist() == [1, 2, 3, 3, 3, 3]


def test_the_future_cannot_leak():
    """Another key and value for a later token change nothing before it."""
    q, k, v = f32(4, 2, 6), f32(1, 6, 4), f32(1, 4, 6)
    before = ref.attention(q, [k], [v], 99)
    k[:, :, 3], v[:, 3] = 50.0, -50.0
    np.testing.assert_array_equal(ref.attention(q, [k], [v], 99)[:3], before[:3])


def test_nothing_is_promoted_to_float64():
    q, k, v = f32(2, 4, 6), f32(2, 6, 5), f32(2, 5, 6)
    table = ref.rope_table(np.arange(2), ref.rope_frequencies(6, 100.0))
    for result in (
        ref.attention(q, [k], [v], 3),
        ref.rope(q, *table),
        ref.rms_norm(q, f32(6), 1e-5),
        ref.swiglu(q, q),
        ref.softmax(q),
    ):
        assert result.dtype == np.float32

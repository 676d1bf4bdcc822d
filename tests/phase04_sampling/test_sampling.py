"""Phase 04: from logits to a token. Exact sets and numbers, on vocabularies of 2 to 8 tokens."""

import math

import numpy as np
import pytest

from minifer.errors import NumericsError, RequestError
from minifer.sampling import (
    SamplingParams,
    apply_penalties,
    apply_temperature,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    log_softmax,
    sample,
    uniform,
)

INF = math.inf


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float64)).astype(np.float32)


def kept(scores: np.ndarray) -> set[int]:
    return set(np.flatnonzero(scores > -INF).tolist())


# --- the filters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probabilities", "p", "want"),
    [
        ((0.4, 0.3, 0.2, 0.1), 0.8, {0, 1, 2}),
        ((0.5, 0.41, 0.09), 0.9, {0, 1}),
        ((0.5, 0.3, 0.15, 0.05), 0.6, {0, 1}),
        ((0.05, 0.15, 0.3, 0.5), 0.6, {2, 3}),
        ((0.25, 0.25, 0.25, 0.25), 0.5, {0, 1}),  # among equals, by id
        ((0.2, 0.5, 0.3), 1.0, {0, 1, 2}),
        ((0.2, 0.5, 0.3), 0.0, {1}),
        ((0.2, 0.5, 0.3), 1e-8, {1}),
    ],
)
def test_the_nucleus_includes_the_token_that_crosses(probabilities, p, want):
    assert kept(keep_top_p(logits_of(*probabilities), p)) == want


def test_top_p_equals_the_textbook_on_random_logits():
    """The shortcut that sorts only a part of the vocabulary changes nothing."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores = (rng.standard_normal(rng.integers(1, 60)) * rng.choice([0.1, 1, 6])).astype(np.float32)
        p = float(rng.uniform(0, 1))
        w = np.exp(scores.astype(np.float64) - scores.max())
        w /= w.sum()
        order, total, want = np.argsort(-w, kind="stable"), 0.0, set()
        for i in order:
            if want and total >= p:
                break
            want.add(int(i))
            total += w[i]
        assert kept(keep_top_p(scores, p)) == want


@pytest.mark.parametrize(("k", "want"), [(0, 5), (-1, 5), (1, 1), (3, 3), (5, 5), (49_153, 5)])
def test_top_k_counts(k, want):
    assert len(kept(keep_top_k(np.array([0.5, 2.0, -1.0, 2.0, 0.1], np.float32), k))) == want


def test_top_k_ties_go_by_id_not_by_value():
    assert kept(keep_top_k(np.array([1.0, 2.0, 1.0, 2.0, 1.0], np.float32), 3)) == {0, 1, 3}


def test_min_p_is_relative_to_the_most_likely():
    assert kept(keep_min_p(logits_of(0.5, 0.3, 0.15, 0.05), 0.29)) == {0, 1, 2}
    assert kept(keep_min_p(logits_of(0.5, 0.3, 0.15, 0.05), 0.31)) == {0, 1}
    assert kept(keep_min_p(logits_of(0.5, 0.5), 1.0)) == {0, 1}
    assert kept(keep_min_p(logits_of(0.5, 0.5), 0.0)) == {0, 1}


# --- penalties --------------------------------------------------------------------------------------------------------


def test_repetition_penalty_divides_positive_and_multiplies_negative():
    params = SamplingParams(repetition_penalty=1.5)
    got = apply_penalties(np.array([2, -2, 3, -INF], np.float32), params, [0, 0, 3], [1])
    np.testing.assert_allclose(got, [1.3333333, -3.0, 3.0, -INF])


def test_presence_once_and_frequency_per_use_of_the_answer_only():
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    got = apply_penalties(np.zeros(4, np.float32), params, [3, 3], [1, 2, 1])
    np.testing.assert_allclose(got, [0, -1.0, -0.75, 0])


def test_penalties_leave_the_models_logits_alone():
    logits = np.array([2, 1], np.float32)
    sample(logits, SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0), [0], [0])
    assert logits.tolist() == [2, 1]


# --- temperature and draw ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1e-4, 1e-8, 1e-40, 5e-324])
def test_tiny_temperatures_are_greedy_and_finite(temperature):
    logits = np.array([17.25, 17.37, -30000.0, 3.0], np.float32)
    with np.errstate(all="raise", under="ignore"):
        for position in range(50):
            params = SamplingParams(temperature=temperature)
            assert sample(logits, params, seed=1, position=position).token_id == 1


def test_temperature_divides_after_the_maximum_is_taken_off():
    np.testing.assert_allclose(apply_temperature(np.array([4.0, 2.0], np.float32), 0.5), [0.0, -4.0])


def test_draw_is_the_inverse_of_the_cumulative_distribution():
    scores = logits_of(0.25, 0.5, 0.25)
    assert [draw(scores, u) for u in (0.0, 0.24, 0.26, 0.74, 0.76, 1 - 2**-53)] == [0, 0, 1, 1, 2, 2]
    masked = np.array([-INF, 0.0, -INF, 0.0, -INF], np.float32)
    assert {draw(masked, u) for u in (0.0, 0.5 - 1e-9, 0.5, 1 - 2**-53)} == {1, 3}


def test_uniform_is_fixed_for_ever():
    """SplitMix64 twice, in integers: the same on every machine. mix64(0) is the published first output for seed 0."""
    from minifer.sampling import mix64

    assert mix64(0) == 0xE220A8397B1DCDAF
    assert uniform(0, 0) == (mix64(mix64(0)) >> 11) / 2**53
    assert uniform(7, 3) != uniform(3, 7)
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_uniform_is_uniform_along_positions_and_along_seeds():
    """Kolmogorov-Smirnov at n = 4,000: 1.95 / sqrt(n) is exceeded with probability 0.001 by a fair generator."""
    n = 4000
    for values in ([uniform(11, i) for i in range(n)], [uniform(i, 11) for i in range(n)]):
        gap = np.abs(np.sort(values) - (np.arange(n) + 0.5) / n).max()
        assert gap < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7), SamplingParams(top_k=3)])
def test_sampled_frequencies_by_chi_square(params):
    """Chi-square with at most 4 degrees of freedom; 18.5 is exceeded with probability 0.001."""
    probabilities, n = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), 5000
    want = probabilities ** (1 / params.temperature)
    if params.top_k:
        want[params.top_k :] = 0
    want /= want.sum()
    got = np.zeros(5)
    for i in range(n):
        got[sample(logits_of(*probabilities), params, seed=5, position=i).token_id] += 1
    alive = want > 0
    assert got[~alive].sum() == 0
    assert ((got - n * want)[alive] ** 2 / (n * want[alive])).sum() < 18.5


def test_seed_zero_is_a_seed():
    assert SamplingParams(seed=0).seed == 0
    draws = [[sample(np.zeros(50, np.float32), SamplingParams(seed=s), seed=s, position=p).token_id for p in range(8)]
             for s in (0, 0, 1)]  # fmt: skip
    assert draws[0] == draws[1] != draws[2]


# --- what is reported -------------------------------------------------------------------------------------------------


def test_logprobs_are_the_models_own_whatever_the_filters_do():
    logits = np.array([2.0, 1.0, 0.0, -1.0], np.float32)
    want = log_softmax(logits)
    got = sample(logits, SamplingParams(temperature=0.5, top_p=0.1, logprobs=3), seed=0, position=0)
    assert got.token_id == 0
    assert got.logprob == pytest.approx(want[0], abs=1e-6)
    assert [i for i, _ in got.top] == [0, 1, 2]
    np.testing.assert_allclose([lp for _, lp in got.top], want[:3], atol=1e-6)


def test_the_chosen_token_is_reported_even_outside_the_top():
    logits = np.array([1.0, 1.1, 1.2, 1.3], np.float32)
    params = SamplingParams(logprobs=1, temperature=5.0)
    got = next(s for s in (sample(logits, params, seed=s, position=0) for s in range(99)) if s.token_id == 0)
    assert got.top[0][0] == 3
    assert got.logprob == pytest.approx(log_softmax(logits)[0], abs=1e-6)


def test_logprobs_zero_is_not_none():
    logits = np.array([1.0, 3.0], np.float32)
    assert sample(logits, SamplingParams(temperature=0, logprobs=0)).top == ()
    assert SamplingParams(logprobs=0).logprobs == 0


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf], [1.0, np.nan]])
def test_unusable_logits_are_an_error_and_not_a_token(bad):
    for params in (SamplingParams(temperature=0), SamplingParams()):
        with pytest.raises(NumericsError, match="logits"):
            sample(np.array(bad, np.float32), params)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", INF), ("temperature", "hot"),
        ("temperature", None), ("top_p", -0.01), ("top_p", 1.01), ("min_p", 2), ("top_k", -2), ("top_k", 1.5),
        ("top_k", True), ("n", 0), ("n", 129), ("max_tokens", -1), ("max_tokens", "x"), ("logprobs", -1),
        ("repetition_penalty", 0), ("presence_penalty", 2.1), ("frequency_penalty", -3), ("seed", 0.5),
        ("stop", ""), ("stop", ["a", ""]), ("stop", [3]), ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]),
    ],
)  # fmt: skip
def test_values_out_of_range_are_named(name, value):
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_edge_values_that_are_fine():
    params = SamplingParams(top_p=0, top_k=-1, max_tokens=0, logprobs=0, seed=-5, stop=None, stop_token_ids=None)
    assert params.stop == () == params.stop_token_ids
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"], max_tokens=None).stop == ("a", "b")

"""Phase 09: given the same logits, the device draws the CPU's tokens: the same filters, the same hash, the same order.

The oracle is `minifer/sampling.py`, one row at a time. A token could differ only where a random number falls within
about 1e-15 of a border between two tokens.
"""

import numpy as np
import pytest

from minifer.device import select_device
from minifer.ops.cuda_decode import LooseSampler, sampler_arrays
from minifer.ops.cuda_launch import Kernels
from minifer.sampling import SamplingParams, sample
from tests.gpu_rooms import DEVICES

VOCAB = 203

FILTERS = {
    "greedy": {"temperature": 0},
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 5.0},
    "top-k": {"top_k": 7},
    "top-k 1": {"top_k": 1},
    "top-k of all": {"top_k": VOCAB},
    "top-p": {"top_p": 0.7},
    "top-p 0": {"top_p": 0.0},
    "top-p nearly 1": {"top_p": 0.999999},
    "min-p": {"min_p": 0.1},
    "min-p 1": {"min_p": 1.0},
    "all": {"temperature": 1.7, "top_k": 50, "top_p": 0.8, "min_p": 0.01},
}


@pytest.fixture(scope="module", params=DEVICES)
def sampler(request):
    device = select_device(request.param)
    return device, LooseSampler(Kernels(device.xp, "float32", 6, 3), device.xp)


def drawn(sampler, logits, params, seeds):
    device, loose = sampler
    draws = [(params, seed, 3 + 2 * row) for row, seed in enumerate(seeds)]
    return loose.sample(device.asarray(logits), draws)


def expected(logits, params, seeds):
    rows = enumerate(zip(logits, seeds, strict=True))
    return [sample(row, params, seed=seed, position=3 + 2 * i) for i, (row, seed) in rows]


@pytest.mark.parametrize("name", FILTERS)
def test_the_same_tokens_as_on_the_cpu(sampler, name):
    """Eight rows of different shape: flat, peaked, with ties by the dozen, with tokens at -inf."""
    rng = np.random.default_rng(11)
    logits = rng.standard_normal((8, VOCAB)).astype(np.float32)
    logits[1] *= 6
    logits[2] = np.round(logits[2])  # many tokens share a score: the smaller id comes first
    logits[3] = 0.25
    logits[4, rng.random(VOCAB) < 0.7] = -np.inf
    logits[5] = -np.inf
    logits[5, 17] = -3.0
    logits[6] += 50
    seeds = [1, 2, 3, -4, 2**63, 0, 7, 123456789]
    params = SamplingParams(**FILTERS[name])
    got, want = drawn(sampler, logits, params, seeds), expected(logits, params, seeds)
    assert [token for token, _ in got] == [one.token_id for one in want]
    np.testing.assert_allclose([logprob for _, logprob in got], [one.logprob for one in want], rtol=1e-5, atol=1e-6)


def test_hundreds_of_draws_follow_the_cpu(sampler):
    """One row, many seeds: every token of a cut distribution turns up, in the CPU's order."""
    row = (np.random.default_rng(5).standard_normal(VOCAB) * 2).astype(np.float32)
    params = SamplingParams(top_k=12, top_p=0.95)
    seeds = list(range(200))
    got = drawn(sampler, np.tile(row, (200, 1)), params, seeds)
    tokens = [token for token, _ in got]
    assert tokens == [sample(row, params, seed=seed, position=3 + 2 * i).token_id for i, seed in enumerate(seeds)]
    assert len(set(tokens)) > 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, "nothing"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_give_token_minus_one(sampler, bad, temperature):
    """NaN hides in a maximum; it must not hide here. The neighbour's row is not disturbed."""
    logits = np.random.default_rng(2).standard_normal((2, VOCAB)).astype(np.float32)
    if bad == "nothing":
        logits[0] = -np.inf
    else:
        logits[0, 100] = bad
    params = SamplingParams(temperature=temperature)
    (token, _), (other, _) = drawn(sampler, logits, params, [1, 2])
    assert token == -1
    assert other == sample(logits[1], params, seed=2, position=5).token_id


def test_what_the_kernel_is_told():
    """Greedy rows get temperature 0, switched-off filters what drops nothing, seeds their lower 64 bits."""
    drawn = SamplingParams(temperature=0.5, min_p=0.25, top_k=-1)
    arrays = sampler_arrays([(SamplingParams(temperature=0), 1, 5), (drawn, -1, 5)], 3)
    assert arrays["temperatures"].tolist() == [0.0, 0.5, 0.0]
    assert arrays["floors"].tolist() == [np.float32(-3e38), np.float32(np.log(0.25)), np.float32(-3e38)]
    assert arrays["top_ks"].tolist() == [0, 0, 0]
    assert arrays["top_ps"].tolist() == [1.0, 1.0, 1.0]
    assert arrays["seeds"].tolist() == [1, 2**64 - 1, 0]

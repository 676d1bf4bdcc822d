"""From logits to the next token, as pure functions.

A model gives one number per token of its vocabulary. What happens next is a pipeline of functions `[V] -> [V]` that
push numbers down or to -inf, and one draw at the end:

    logits -> penalties -> temperature -> min-p -> top-k -> top-p -> draw

in vLLM's order. Log-probabilities that are reported are those of the model itself, before any of it (OpenAI's meaning).

The draw uses no generator that carries state from one token to the next. Its random number is a hash of the request's
seed and the token's position, so that neighbours in the batch, their order, and a preemption in the middle change
nothing, and a GPU can compute the same number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minifer.errors import NumericsError
from minifer.sampling_params import SamplingParams as SamplingParams

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token, its log-probability under the model, and the most likely `(id, logprob)` pairs."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: np.ndarray,
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    *,
    seed: int = 0,
    position: int = 0,
) -> Sampled:
    """Choose the next token from `logits [V]` of one sequence.

    `position` is the place of the new token in the sequence; with `seed` it determines the draw.
    Raises NumericsError if the logits hold NaN or +inf, or nothing above -inf.

    >>> sample(np.array([1.0, 3.0, 2.0], dtype=np.float32), SamplingParams(temperature=0)).token_id
    1
    """
    if not math.isfinite(float(logits.max())):
        raise NumericsError(f"the model gave no usable logits: their maximum is {logits.max()}")
    scores = apply_penalties(logits, params, prompt_ids, output_ids)
    if params.greedy:
        token = int(scores.argmax())
    else:
        scores = apply_temperature(scores, params.temperature)
        scores = keep_top_p(keep_top_k(keep_min_p(scores, params.min_p), params.top_k), params.top_p)
        token = draw(scores, uniform(seed, position))
    return _report(logits, token, params.logprobs)


def apply_penalties(
    logits: np.ndarray, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> np.ndarray:
    """Push down the scores `[V]` of tokens that were used already; returns the same array where nothing is asked.

    The repetition penalty divides a positive logit and multiplies a negative one, once per distinct token (Keskar et
    al., "CTRL", 2019); presence subtracts once, frequency once per use.
    """
    plain = params.presence_penalty == params.frequency_penalty == 0
    if params.repetition_penalty == 1 and (plain or not output_ids):
        return logits
    scores = logits.copy()
    if params.repetition_penalty != 1:
        seen = np.unique(np.array([*prompt_ids, *output_ids], dtype=np.int64))
        penalty = scores.dtype.type(params.repetition_penalty)
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if not plain and output_ids:
        used, times = np.unique(np.array(output_ids, dtype=np.int64), return_counts=True)
        scores[used] -= (params.presence_penalty + params.frequency_penalty * times).astype(scores.dtype)
    return scores


def apply_temperature(scores: np.ndarray, temperature: float) -> np.ndarray:
    """`(scores - max) / temperature`: the largest becomes 0, so that no temperature can overflow."""
    return (scores - scores.max()) / scores.dtype.type(temperature)


def keep_min_p(scores: np.ndarray, min_p: float) -> np.ndarray:
    """Drop tokens less likely than `min_p` times the most likely one; dropped scores become -inf."""
    if min_p <= 0:
        return scores
    return _keep(scores, np.flatnonzero(scores >= scores.max() + math.log(min_p)))


def keep_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Keep the k largest scores; among equals at the cut, those with the smaller id. k <= 0 keeps all.

    >>> keep_top_k(np.array([1.0, 2.0, 2.0, 2.0]), 2).tolist()
    [-inf, 2.0, 2.0, -inf]
    """
    if k <= 0 or k >= scores.size:
        return scores
    cut = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > cut)
    level = np.flatnonzero(scores == cut)[: k - above.size]
    return _keep(scores, np.concatenate([above, level]))


def keep_top_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Keep the smallest set of most likely tokens whose probability reaches p, the one that crosses p included.

    Among equals, smaller ids come first. Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.

    >>> keep_top_p(np.log(np.array([0.4, 0.3, 0.2, 0.1])), 0.8) > -np.inf
    array([ True,  True,  True, False])
    """
    if p >= 1:
        return scores
    weights = np.exp((scores - scores.max()).astype(np.float64))
    weights /= weights.sum()
    # Tokens below (1 - p) / V are together less than 1 - p, so none of them is needed: only the others are sorted.
    candidates = np.flatnonzero(weights >= min((1 - p) / weights.size, weights.max()))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    reached_before = np.cumsum(weights[order]) - weights[order]
    count = max(1, int(np.count_nonzero(reached_before < p)))
    return _keep(scores, order[:count])


def _keep(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    kept = np.full_like(scores, -math.inf)
    kept[ids] = scores[ids]
    return kept


def draw(scores: np.ndarray, u: float) -> int:
    """The token at which the cumulative probability, in order of id, first exceeds `u` in [0, 1).

    Scores need not be normalised; tokens at -inf are never drawn.
    """
    weights = np.exp((scores - scores.max()).astype(np.float64))
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))  # u just under 1 may round up to the total


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a hash of `seed` and `position`: the same on every machine, 53 bits of it.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014 (SplitMix64), applied twice.
    """
    return (mix64(mix64(seed & _MASK) ^ (position & _MASK)) >> 11) * 2.0**-53


def mix64(z: int) -> int:
    """SplitMix64's step: a bijection of 64-bit numbers in which every input bit stirs every output bit."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities `[..., V]` of logits `[..., V]`, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _report(logits: np.ndarray, token: int, count: int | None) -> Sampled:
    top = float(logits.max())
    log_total = top + math.log(float(np.exp(logits - logits.dtype.type(top)).sum(dtype=np.float64)))
    best: tuple[tuple[int, float], ...] = ()
    if count:
        kept = np.flatnonzero(keep_top_k(logits, count) > -math.inf)
        order = kept[np.argsort(-logits[kept], kind="stable")]
        best = tuple((int(i), float(logits[i]) - log_total) for i in order)
    return Sampled(token, float(logits[token]) - log_total, best)

"""The lab tasks of phase 04: what stays, what is drawn, and text that must not be shown yet."""

import math
from itertools import pairwise

import numpy as np
import pytest

from minifer.sampling import draw, keep_top_k, keep_top_p
from minifer.stop_strings import StopStrings


@pytest.mark.task("4.1")
def test_top_k_keeps_the_largest(rng):
    """By sorting, and what stays is unchanged."""
    scores = rng.permutation(30).astype(np.float32)
    for k in (1, 4, 29):
        kept = keep_top_k(scores.copy(), k)
        best = set(np.argsort(-scores)[:k].tolist())
        assert {i for i in range(30) if kept[i] > -math.inf} == best
        assert all(kept[i] == scores[i] for i in best)


@pytest.mark.task("4.1")
def test_top_k_breaks_ties_by_id():
    """Exactly k stay, the smaller ids among equals."""
    scores = np.array([1.0, 5.0, 2.0, 2.0, 2.0])
    assert np.flatnonzero(keep_top_k(scores, 3) > -math.inf).tolist() == [1, 2, 3]


@pytest.mark.task("4.1")
def test_top_k_off_keeps_all(rng):
    """0, -1, V and more."""
    scores = rng.normal(size=6)
    for k in (0, -1, 6, 99):
        assert keep_top_k(scores, k).tolist() == scores.tolist()


@pytest.mark.task("4.2")
def test_top_p_keeps_the_one_that_crosses():
    """By hand, in another order than by size, and not normalised."""
    scores = np.log(np.array([0.1, 0.4, 0.2, 0.3])) + 3
    for p, stay in ((0.05, [1]), (0.35, [1]), (0.55, [1, 3]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])):
        kept = keep_top_p(scores, p)
        assert np.flatnonzero(kept > -math.inf).tolist() == stay
        assert kept[stay].tolist() == scores[stay].tolist()


@pytest.mark.task("4.2")
def test_top_p_is_the_smallest_set(rng):
    """By the definition: no set of fewer tokens reaches p."""
    for p in (0.2, 0.5, 0.9, 0.99):
        scores = rng.normal(size=40) * 2
        weights = np.sort(np.exp(scores) / np.exp(scores).sum())[::-1]
        count = next(n for n in range(1, 41) if weights[:n].sum() >= p)
        assert np.count_nonzero(keep_top_p(scores, p) > -math.inf) == count


@pytest.mark.task("4.2")
def test_top_p_at_its_ends():
    """1 keeps all, 0 keeps the best, equals go by id, and -inf stays out."""
    scores = np.array([2.0, 2.0, 2.0, 2.0, -np.inf])
    assert keep_top_p(scores, 1.0).tolist() == scores.tolist()
    assert np.flatnonzero(keep_top_p(scores, 0.0) > -math.inf).tolist() == [0]
    assert np.flatnonzero(keep_top_p(scores, 0.45) > -math.inf).tolist() == [0, 1]


@pytest.mark.task("4.3")
def test_draw_by_hand():
    """Probabilities 1/8, 1/2, 3/8: the borders belong to the token above."""
    scores = np.log(np.array([1.0, 4.0, 3.0])) + 5
    for u, token in ((0.0, 0), (0.12, 0), (0.13, 1), (0.62, 1), (0.63, 2), (0.999, 2)):
        assert draw(scores, u) == token


@pytest.mark.task("4.3")
def test_draw_never_takes_what_was_dropped():
    """-inf at both ends and between; u as near to 1 as a float can be."""
    scores = np.array([-np.inf, 1.0, -np.inf, 1.0, -np.inf], dtype=np.float32)
    assert [draw(scores, u) for u in (0.0, 0.49, 0.51, 1 - 2.0**-53)] == [1, 1, 3, 3]
    assert draw(np.zeros(3) + 1000, 0.5) == 1


@pytest.mark.task("4.3")
def test_draw_follows_the_probabilities(rng):
    """A fine grid of u hits each token as often as it is likely."""
    p = rng.dirichlet(np.ones(5))
    hits = np.bincount([draw(np.log(p), (i + 0.5) / 2000) for i in range(2000)], minlength=5)
    np.testing.assert_allclose(hits / 2000, p, atol=2e-3)


@pytest.mark.task("4.4")
def test_push_finds_a_stop_string_across_pieces(rng):
    """However the text is cut, what is shown ends before the stop string."""
    text, stop = "abcabXabcabcaEND and more", "caEND"
    for _ in range(20):
        cuts = [0, *sorted(rng.integers(0, len(text), 5).tolist()), len(text)]
        watch = StopStrings([stop])
        shown = "".join(watch.push(text[a:b]) for a, b in pairwise(cuts))
        assert shown == text[: text.index(stop)]
        assert watch.stopped == stop


@pytest.mark.task("4.4")
def test_push_shows_all_that_is_safe():
    """Only what may still become a stop string is held back."""
    watch = StopStrings(["aab", "##"])
    assert [watch.push(t) for t in ("xa", "a", "a", "c#", "d")] == ["x", "", "a", "aac", "#d"]
    assert watch.stopped is None
    assert [watch.push("z#"), watch.finish()] == ["z", "#"]


@pytest.mark.task("4.4")
def test_push_takes_the_earlier_start_and_stays_stopped():
    """Two in one piece; nothing is shown afterwards."""
    watch = StopStrings(["two", "one"])
    assert watch.push("0 one two") == "0 "
    assert watch.stopped == "one"
    assert watch.push("more") == ""
    assert watch.finish() == ""
    assert StopStrings([]).push("anything") == "anything"

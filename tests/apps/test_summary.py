"""A whole run in numbers, and a request as a client saw it, against numbers worked by hand."""

import json

import pytest

from minifer.apps.summary import SLO_INTERACTIVE, describe, from_events, summarise
from minifer.metrics import RequestMetrics, from_stamps, meets


def evenly(tokens: int, gap: float, ttft: float = 0.1) -> RequestMetrics:
    """An answer whose tokens come `gap` seconds apart."""
    return from_stamps(0.0, [ttft + i * gap for i in range(tokens)], tokens)


def test_empty_events_move_no_clock() -> None:
    log = [(0.10, ""), (0.50, "A"), (0.52, "B"), (0.54, "CD"), (0.56, ""), (0.57, "")]
    metrics = from_events(0.0, log, output_tokens=4)
    assert metrics.ttft == 0.50
    assert metrics.e2e == 0.54
    assert metrics.itl == pytest.approx((0.02, 0.02))
    assert metrics.tpot == pytest.approx(0.04 / 3)


def test_a_mean_of_tpot_is_not_a_mean_of_itl() -> None:
    summary = summarise([evenly(3, 0.010), evenly(11, 0.040)], duration=1.0)
    assert summary["mean_tpot_ms"] == pytest.approx(25)
    assert summary["mean_itl_ms"] == pytest.approx(35)


def test_short_answers_have_no_tpot_and_are_counted() -> None:
    answers = [evenly(0, 0), evenly(1, 0, ttft=0.3), evenly(3, 0.010)]
    assert [a.tpot for a in answers[:2]] == [None, None]
    assert (answers[0].ttft, answers[1].ttft, answers[1].e2e) == (None, 0.3, 0.3)
    summary = summarise(answers, duration=2.0)
    assert (summary["zero_token_answers"], summary["one_token_answers"], summary["completed"]) == (1, 1, 3)
    assert summary["mean_tpot_ms"] == pytest.approx(10)
    assert summary["mean_ttft_ms"] == pytest.approx(200)
    assert summary["output_throughput"] == 2


def test_nothing_gives_nulls_and_valid_json() -> None:
    for requests, duration in (([], 1.0), ([evenly(0, 0)], 1.0), ([evenly(1, 0)], 0.0)):
        summary = summarise(requests, duration)
        assert summary["mean_tpot_ms"] is summary["p99_tpot_ms"] is summary["std_tpot_ms"] is None
        json.dumps(summary, allow_nan=False)


def test_failures_are_counted_and_enter_nothing_else() -> None:
    broken = from_events(0.0, [(9.0, "a"), (19.0, "b")], 2, prompt_tokens=100, error="connection reset")
    alone = summarise([evenly(3, 0.010)], duration=1.0)
    both = summarise([evenly(3, 0.010), broken], duration=1.0)
    assert both.pop("failed") == 1
    assert alone.pop("failed") == 0
    assert both == alone


def test_a_description_names_everything() -> None:
    assert describe([2, 4, 4, 4, 5, 5, 7, 9], [25]) == {"mean": 5, "median": 4.5, "std": 2, "p25": 4}
    assert set(describe([]).values()) == {None}


def test_goodput_is_requests_that_keep_every_promise() -> None:
    requests = [evenly(5, 0.02), evenly(5, 0.05), evenly(5, 0.02, ttft=0.6), evenly(1, 0), evenly(0, 0)]
    assert [meets(r, SLO_INTERACTIVE) for r in requests] == [True, False, False, True, True]
    assert summarise(requests, duration=4.0, slo_ms=SLO_INTERACTIVE)["request_goodput"] == 0.5  # no answer, no good
    assert meets(evenly(3, 0.1), {"e2el": 300.1})
    assert not meets(evenly(3, 0.1), {"e2el": 299.9})


def test_throughput_counts_tokens_of_the_usage() -> None:
    metrics = [from_events(0.0, [(1.0, "ab"), (2.0, "c")], output_tokens=7, prompt_tokens=5)] * 2
    summary = summarise(metrics, duration=4.0)
    assert summary["total_input_tokens"] == 10
    assert summary["total_output_tokens"] == 14
    assert summary["output_throughput"] == 3.5
    assert summary["total_token_throughput"] == 6.0
    assert summary["request_throughput"] == 0.5


def test_tokens_found_in_the_cache_and_preemptions_add_up() -> None:
    requests = [RequestMetrics(cached_tokens=16, num_preemptions=2), RequestMetrics(cached_tokens=32)]
    summary = summarise(requests, duration=1.0)
    assert (summary["total_cached_tokens"], summary["num_preemptions"]) == (48, 2)

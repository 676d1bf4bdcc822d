"""Metrics from fixed logs, against numbers worked by hand. Whole runs: `tests/apps/test_summary.py`."""

import pytest
from scheduling import World, make_request

from minifer.metrics import from_request, from_stamps, meets, percentile


def test_stamps_give_every_figure() -> None:
    metrics = from_stamps(10.0, [10.25, 10.75, 12.25], output_tokens=3)
    assert (metrics.ttft, metrics.itl, metrics.tpot, metrics.e2e) == (0.25, (0.5, 1.5), 1.0, 2.25)


@pytest.mark.parametrize(("stamps", "ttft", "tpot", "e2e"), [([], None, None, None), ([0.5], 0.5, None, 0.5)])
def test_what_is_undefined_is_none(
    stamps: list[float], ttft: float | None, tpot: float | None, e2e: float | None
) -> None:
    metrics = from_stamps(0.0, stamps, len(stamps))
    assert (metrics.ttft, metrics.tpot, metrics.e2e, metrics.itl) == (ttft, tpot, e2e, ())


def test_a_promise_is_kept_up_to_its_limit() -> None:
    metrics = from_stamps(0.0, [0.25, 0.5, 0.75], 3)
    assert meets(metrics, {"ttft": 250, "tpot": 250, "e2el": 750})
    assert not any(meets(metrics, {name: limit}) for name, limit in (("ttft", 249), ("tpot", 249), ("e2el", 749)))
    assert meets(from_stamps(0.0, [0.25], 1), {"tpot": 0}), "what is undefined breaks no promise"


@pytest.mark.parametrize("events", range(6))
def test_k_events_give_k_minus_1_gaps(events: int) -> None:
    assert len(from_stamps(0.0, [float(i) for i in range(events)], events).itl) == max(events - 1, 0)


def test_percentiles_interpolate_linearly() -> None:
    values = [1000, 10, 30, 20, 40]
    got = [percentile(values, p) for p in (0, 50, 90, 95, 99, 100)]
    assert got == pytest.approx([10, 30, 616, 808, 961.6, 1000])  # the last digit is yours
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_the_parts_of_a_request_add_up() -> None:
    """Steps take a second each; "b" waits for the only seat until "a" is done."""
    world = World(max_num_seqs=1, max_num_batched_tokens=4)
    a, b = make_request("a", 6, 3), make_request("b", 9, 2)
    world.add(a, b)
    world.finish_all()
    first, second = from_request(a), from_request(b)
    assert (first.queue_time, first.prefill_time, first.decode_time) == (0, 2, 2)
    assert (first.ttft, first.itl, first.tpot, first.e2e) == (2, (1, 1), 1, 4)
    assert (second.queue_time, second.prefill_time, second.decode_time) == (4, 3, 1)
    assert second.e2e == second.queue_time + second.inference_time == second.ttft + sum(second.itl) == 8
    assert (second.prompt_tokens, second.output_tokens) == (9, 2)


def test_preemptions_are_counted_and_cost_latency() -> None:
    world = World(4, 4, enable_prefix_caching=False, max_num_seqs=4)
    world.add(*[make_request(f"r{i}", 4, 12) for i in range(4)])
    world.finish_all()
    metrics = [from_request(r) for r in world.asked]
    assert sum(m.num_preemptions for m in metrics) == world.scheduler.num_preemptions > 0
    victim = next(m for m in metrics if m.num_preemptions)
    assert max(victim.itl) > 1
    assert victim.e2e == pytest.approx(victim.queue_time + victim.prefill_time + victim.decode_time)


def test_an_aborted_or_failed_request_is_measured_as_far_as_it_came() -> None:
    world = World()
    world.add(a := make_request("a", 4, 8), b := make_request("b", 4, 8))
    assert from_request(a).queue_time is None
    world.step()
    world.step()
    world.finish("a")
    world.events += world.scheduler.finish("b", "error", world.clock.now(), "broken")
    assert (from_request(a).error, from_request(a).output_tokens, from_request(a).e2e) == (None, 2, 2)
    assert from_request(b).error == "broken"

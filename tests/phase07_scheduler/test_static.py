"""Static against continuous batching: the law of the two in seat steps, exactly and on drawn lengths."""

import random

import pytest
from scheduling import World, make_request, phases

from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.static import StaticScheduler


def seat_steps(kind: type, lengths: list[int], seats: int) -> int:
    """Seats paid for, over all steps, for prompts of one token and answers of the given lengths."""
    blocks = seats * (max(lengths) // 16 + 2)
    world = World(blocks, 16, kind=kind, max_num_seqs=seats, max_num_batched_tokens=seats)
    world.add(*[make_request(f"r{i}", 1, length) for i, length in enumerate(lengths)])
    return sum(plan.seats for plan in world.finish_all())


def test_a_batch_costs_its_longest_answer() -> None:
    lengths = [3, 9, 1, 5, 2, 2, 8, 4]
    assert seat_steps(StaticScheduler, lengths, 4) == 4 * 9 + 4 * 8
    assert seat_steps(ContinuousScheduler, lengths, 4) == sum(lengths)


def test_equal_lengths_gain_nothing() -> None:
    assert seat_steps(StaticScheduler, [6] * 8, 4) == seat_steps(ContinuousScheduler, [6] * 8, 4) == 48


@pytest.mark.parametrize("seats", [2, 4, 8])
def test_exponential_lengths_gain_the_harmonic_number(seats: int) -> None:  # M5
    """E[max of B] / E[mean] is 1 + 1/2 + ... + 1/B for exponential lengths."""
    rng = random.Random(7)
    lengths = [1 + int(rng.expovariate(1 / 16)) for _ in range(256)]
    gain = seat_steps(StaticScheduler, lengths, seats) / seat_steps(ContinuousScheduler, lengths, seats)
    law = sum(1 / i for i in range(1, seats + 1))
    assert gain == pytest.approx(law, rel=0.10)


def test_a_closed_batch_admits_no_one() -> None:
    world = World(16, 4, kind=StaticScheduler, max_num_seqs=2)
    world.add(make_request("a", 3, 2), make_request("b", 3, 6), make_request("c", 3, 2))
    plans = world.finish_all()
    assert [sorted(phases(plan)) for plan in plans] == [["a", "b"]] * 2 + [["b"]] * 4 + [["c"]] * 2
    assert [plan.seats for plan in plans] == [2] * 6 + [1] * 2
    assert plans[1].refused == (("c", "the batch runs to its end first"),)


def test_prompts_of_a_batch_share_the_budget_in_chunks() -> None:
    world = World(16, 4, kind=StaticScheduler, max_num_seqs=3, max_num_batched_tokens=8)
    world.add(*[make_request(f"r{i}", 7, 3) for i in range(3)])
    plans = world.finish_all()
    assert plans[0].admitted == (("r0", 0), ("r1", 0), ("r2", 0))
    assert [plan.num_tokens for plan in plans[:3]] == [8, 8, 8]


def test_a_batch_reserves_whole_lives_and_never_preempts() -> None:
    world = World(6, 4, kind=StaticScheduler, max_num_seqs=4)
    world.add(*[make_request(f"r{i}", 3, 8) for i in range(5)])  # 10 slots, 3 blocks each: two at a time
    plans = world.finish_all()
    assert max(plan.running for plan in plans) == 2
    assert world.scheduler.num_preemptions == 0


def test_siblings_are_separate_requests_in_a_closed_batch() -> None:
    world = World(16, 4, kind=StaticScheduler, max_num_seqs=3)
    world.add(make_request("a", 6, 4, n=4))
    plans = world.finish_all()
    assert [name for name, _ in plans[0].admitted] == ["a", "a.1", "a.2"]
    assert len({tuple(r.output_ids) for r in world.asked}) == 4

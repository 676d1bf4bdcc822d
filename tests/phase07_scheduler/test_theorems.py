"""What must not change an answer: company, chunks, order of arrival, preemption, the kind of scheduler.

Each theorem compares with the fake model's solo run, which knows no cache (`World.finish_all` does that for everyone).
"""

import random

import pytest
from scheduling import World, alone, make_request

from minifer.scheduler.continuous import ContinuousScheduler, by_priority
from minifer.scheduler.request import Request
from minifer.scheduler.static import StaticScheduler

KINDS = [ContinuousScheduler, StaticScheduler]


def crowd(seed: int, count: int = 12, longest: int = 20) -> list[Request]:
    """Requests of mixed lengths, some with a common beginning, as different as chance makes them."""
    rng = random.Random(seed)
    common = [rng.randrange(1000) for _ in range(longest)]
    requests = []
    for i in range(count):
        prompt = common[: rng.randint(0, longest // 2)] + [
            rng.randrange(1000) for _ in range(rng.randint(1, longest // 2))
        ]
        requests.append(make_request(f"r{i}", prompt, rng.randint(1, 12), n=rng.choice([1, 1, 1, 3]), seed=i))
    return requests


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_in_company_as_alone(kind: type, seed: int) -> None:
    world = World(num_blocks=32, block_size=4, kind=kind, max_num_seqs=6, max_num_batched_tokens=16)
    world.add(*crowd(seed))
    world.finish_all()


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 8, 16, 64])
def test_any_chunk_size_gives_the_same_tokens(budget: int) -> None:
    world = World(num_blocks=32, block_size=4, max_num_seqs=1, max_num_batched_tokens=budget)
    world.add(*crowd(3, count=5))
    world.finish_all()
    assert len([e for e in world.events if e.token_id is not None]) == sum(r.max_tokens for r in world.asked)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_arrival_gives_the_same_tokens(seed: int) -> None:
    requests = crowd(1)
    rng = random.Random(seed)
    rng.shuffle(requests)
    world = World(num_blocks=32, block_size=4, max_num_seqs=5, max_num_batched_tokens=16)
    for request in requests:
        request.arrival = world.clock.now()
        world.add(request)
        for _ in range(rng.randint(0, 3)):
            world.step()
    world.finish_all()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_blocks", [6, 7, 8, 9, 12])
def test_preempted_and_resumed_as_uninterrupted(num_blocks: int, caching: bool) -> None:
    world = World(num_blocks, 4, enable_prefix_caching=caching, max_num_seqs=6, max_num_batched_tokens=8)
    world.add(*[make_request(f"r{i}", 3 + i, 14) for i in range(6)])
    world.finish_all()
    assert world.scheduler.num_preemptions > 0


def test_preemptions_stay_few() -> None:
    for seed in range(20):
        world = World(8, 4, max_num_seqs=8, max_num_batched_tokens=8)
        requests = [make_request(f"r{i}", 1 + (seed + i) % 5, 20, seed=seed) for i in range(12)]
        world.add(*requests)
        world.finish_all()
        assert world.scheduler.num_preemptions <= 3 * len(requests)
        assert requests[0].num_preemptions == 0, "the oldest is never a victim"


def test_nobody_starves_under_a_stream_of_new_requests() -> None:
    world = World(num_blocks=10, block_size=4, max_num_seqs=3, max_num_batched_tokens=8)
    big = make_request("big", 30, 8, arrival=0.5)
    world.add(make_request("s0", 3, 6, arrival=0.0), big)
    for i in range(1, 60):
        world.add(make_request(f"s{i}", 3, 6, arrival=float(i)))
        world.step()
    assert big.finished is not None
    assert big.finished < 40
    world.finish_all()


def test_a_stopped_answer_keeps_its_last_token() -> None:
    for place in (0, 1, 5):  # EOS as the very first token is a case of its own
        probe = make_request("r", 6, 8)
        probe.max_tokens = 8
        eos = alone(probe)[place]
        for ignore in (False, True):
            world = World()
            request = make_request("r", 6, 8, eos_ids=(eos,), ignore_eos=ignore)
            world.add(request)
            world.finish_all()
            assert len(request.output_ids) == (8 if ignore else place + 1)
            assert request.finish_reason == ("length" if ignore else "stop")


def test_stop_token_ids_stop_even_when_eos_is_ignored() -> None:
    probe = make_request("r", 6, 8)
    probe.max_tokens = 8
    stop = alone(probe)[2]
    world = World()
    request = make_request("r", 6, 8, eos_ids=(stop,), ignore_eos=True, stop_token_ids=(stop,))
    world.add(request)
    world.finish_all()
    assert (len(request.output_ids), request.finish_reason) == (3, "stop")


def test_no_limit_means_until_the_room_is_full() -> None:
    world = World(num_blocks=4, block_size=4)
    request = make_request("r", 5, None)
    world.add(request)
    world.finish_all()
    assert len(request.output_ids) == 12  # 16 slots hold the prompt and all new tokens but the last
    limited = World(num_blocks=4, block_size=4, max_model_len=10)
    limited.add(request := make_request("r", 5, None))
    limited.finish_all()
    assert len(request.output_ids) == 5


def test_no_tokens_wanted_ends_after_the_prompt() -> None:
    world = World()
    request = make_request("r", 6, 0)
    world.add(request)
    world.finish_all()
    assert (request.output_ids, request.finish_reason, len(world.plans)) == ([], "length", 1)
    assert [(e.token_id, e.finish_reason) for e in world.events] == [(None, "length")]


@pytest.mark.parametrize("n", [1, 2, 4, 7])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 20])
def test_n_answers_pay_for_the_prompt_once(n: int, length: int) -> None:
    world = World(num_blocks=64, block_size=4, enable_prefix_caching=False)
    request = make_request("r", length, 6, n=n)
    world.add(request)
    plans = world.finish_all()
    computed = sum(plan.num_tokens for plan in plans)
    assert computed == length + 5 + (n - 1) * 6  # a sibling computes the prompt's last token and five of its own
    assert len({tuple(r.output_ids) for r in world.asked}) == n, "answers with different seeds must differ"


def test_priority_changes_who_waits_and_not_what_is_said() -> None:
    world = World(num_blocks=8, block_size=4, max_num_seqs=2, policy={"order": by_priority})
    requests = [make_request(f"r{i}", 4, 5, priority=-i) for i in range(6)]
    world.add(*requests)
    world.finish_all()
    order = [r.id for r in sorted(requests, key=lambda r: (r.token_times[0], r.rank))]
    assert order == ["r5", "r4", "r3", "r2", "r1", "r0"]


def test_seats_of_the_aborted_are_given_back() -> None:
    rng = random.Random(9)
    world = World(12, 4, max_num_seqs=3, max_num_batched_tokens=8)
    for i in range(500):
        world.add(make_request(f"r{i}", rng.randint(1, 20), rng.randint(1, 8), n=rng.choice([1, 1, 2])))
        if rng.random() < 0.6:
            world.step()
        if rng.random() < 0.7:
            world.finish(f"r{rng.randint(0, i)}")
    for name in list(world.scheduler.requests):
        world.finish(name)
    world.add(last := make_request("last", 20, 8))
    world.finish_all(most_steps=20)
    assert last.finish_reason == "length"

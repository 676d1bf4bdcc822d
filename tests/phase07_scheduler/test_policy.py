"""Who runs in the next step, rule by rule: the docstring of `scheduler/continuous.py` as tests."""

from itertools import pairwise

import pytest
from scheduling import World, make_request, phases

from minifer.scheduler.continuous import by_priority


def test_a_single_request_from_prompt_to_last_token() -> None:
    world = World(num_blocks=4, block_size=4)
    request = make_request("r1", 5, max_tokens=3)
    world.add(request)
    plans = world.finish_all()
    assert [phases(p) for p in plans] == [{"r1": ("prefill", 5)}, {"r1": ("decode", 1)}, {"r1": ("decode", 1)}]
    assert [p.seqs[0].start for p in plans] == [0, 5, 6]  # the last token is sampled and never fed in
    assert request.finish_reason == "length"


def test_a_plan_reads_like_a_sentence() -> None:
    world = World(num_blocks=8, block_size=4, max_num_seqs=2)
    world.add(make_request("r1", 5), make_request("r2", 2), make_request("r3", 2))
    assert str(world.step()) == (
        "step 1: prefill r1[0:5] r2[0:2]; tokens: 7; admitted r1, r2; r3 has to wait (all 2 seats are taken); "
        "running: 2, waiting: 1, free blocks: 5"
    )
    assert str(world.step()).startswith("step 2: decode r1 r2; tokens: 2; r3 has to wait")


def test_decodes_come_first_in_the_budget() -> None:
    world = World(num_blocks=16, block_size=4, max_num_seqs=4, max_num_batched_tokens=8)
    world.add(make_request("a", 3, 20), make_request("b", 3, 20))
    world.step()
    world.add(make_request("long", 30, 2))
    for _ in range(5):  # 6 of 8 tokens are left for the prompt: 5 steps for 30
        plan = phases(world.step())
        assert plan["a"] == plan["b"] == ("decode", 1)
        assert plan["long"] == ("prefill", 6)
    assert phases(world.step())["long"] == ("decode", 1)
    world.finish_all()


def test_no_token_and_no_event_for_an_unfinished_chunk() -> None:
    world = World(num_blocks=8, block_size=4, max_num_batched_tokens=8)
    world.add(make_request("r", 20, 3))
    for done in (8, 16):
        plan = world.step()
        assert [(seq.context, seq.samples) for seq in plan.seqs] == [(done, False)]
        assert world.events == []
    assert world.step().seqs[0].samples
    assert len(world.events) == 1
    world.finish_all()


@pytest.mark.parametrize("budget", [8, 9, 13, 64])
def test_a_short_request_is_answered_while_a_long_prompt_is_read(budget: int) -> None:
    world = World(num_blocks=64, block_size=4, max_num_batched_tokens=budget)
    long, short = make_request("long", 200, 2), make_request("short", 4, 3)
    world.add(long)
    world.step()
    world.add(short)
    chunk = phases(world.step())["long"][1]
    assert chunk >= budget // 2, "the long prompt has to go on at half its pace at least"
    world.finish_all()
    assert short.token_times[0] < long.token_times[0]
    gaps = [later - earlier for earlier, later in pairwise(short.token_times)]
    assert gaps == [1, 1], "once it speaks, the newer request is not held up by the older one's prompt"


def test_a_long_newcomer_does_not_split_the_budget() -> None:
    """Two long prompts side by side would both be late; the second waits until the first can end."""
    world = World(num_blocks=64, block_size=4, max_num_batched_tokens=16)
    world.add(make_request("x", 40, 1), make_request("y", 40, 1))
    shares = [phases(plan) for plan in world.finish_all()]
    assert [{name: tokens for name, (_, tokens) in share.items()} for share in shares] == [
        {"x": 16},
        {"x": 16},
        {"x": 8, "y": 8},
        {"y": 16},
        {"y": 16},
    ]


def test_no_budget_is_wasted_while_somebody_could_use_it() -> None:
    world = World(num_blocks=64, block_size=4, max_num_batched_tokens=16)
    world.add(*[make_request(f"r{i}", 24, 1) for i in range(4)])
    assert [plan.num_tokens for plan in world.finish_all()] == [16] * 6


def test_admission_is_first_come_first_served_by_arrival() -> None:
    world = World(max_num_seqs=1)
    world.add(make_request("late", 3, 2, arrival=9.0), make_request("early", 3, 2, arrival=1.0))
    assert world.step().admitted == (("early", 0),)
    world.finish_all()


def test_who_does_not_fit_is_not_overtaken() -> None:
    world = World(num_blocks=8, block_size=4, max_num_seqs=4)
    world.add(make_request("first", 12, 8), make_request("big", 20, 8), make_request("tiny", 1, 1))
    plan = world.step()
    assert plan.refused == (("big", "blocks needed: 6, free: 5"),)
    assert [name for name, _ in plan.admitted] == ["first"]
    world.finish_all()
    finished = {r.id: r.finished for r in world.asked}
    assert finished["first"] < finished["tiny"]


def test_priority_is_another_order() -> None:
    world = World(max_num_seqs=1, policy={"order": by_priority})
    world.add(make_request("b", 3, 1, priority=2), make_request("a", 3, 1, priority=1, arrival=5.0))
    assert world.step().admitted == (("a", 0),)
    world.finish_all()


def test_the_newest_is_preempted_and_the_oldest_goes_on() -> None:
    world = World(num_blocks=3, block_size=4, enable_prefix_caching=False)
    world.add(make_request("old", 2, 6), make_request("new", 2, 6))
    plans = world.finish_all()
    preempted = [name for plan in plans for name, _ in plan.preempted]
    assert preempted == ["new"]
    assert next(p for p in plans if p.preempted).preempted == (("new", "new needed a block"),)


def test_the_victim_may_have_been_planned_already() -> None:
    """With another policy the victim stands in the plan of this very step, and must be taken out of it."""
    world = World(
        num_blocks=3, block_size=4, enable_prefix_caching=False, policy={"victim": lambda running: running[0]}
    )
    world.add(make_request("old", 2, 6), make_request("new", 2, 6))
    plans = world.finish_all()
    hit = next(plan for plan in plans if plan.preempted)
    assert hit.preempted == (("old", "new needed a block"),)
    assert "old" not in phases(hit)


def test_a_preempted_request_comes_back_only_with_room_to_grow() -> None:
    world = World(num_blocks=4, block_size=4, enable_prefix_caching=False, max_num_seqs=4)
    world.add(*[make_request(f"r{i}", 4, 12) for i in range(4)])
    world.finish_all()
    assert 0 < world.scheduler.num_preemptions <= 2 * 4
    assert sum(r.num_preemptions for r in world.asked) == world.scheduler.num_preemptions


def test_a_request_as_large_as_the_pool_comes_back_too() -> None:
    """Recompute plus one block would never fit here; a request that can grow no more needs none."""
    world = World(num_blocks=3, block_size=4, enable_prefix_caching=False)
    world.add(make_request("old", 2, 5), make_request("new", 4, 9))  # together 5 blocks, the second one alone all 3
    world.finish_all()
    assert world.asked[1].num_preemptions >= 1


def test_a_step_that_preempted_admits_no_one() -> None:
    """The urgent newcomer would fit into what the victim left, but has to wait for the next step."""
    world = World(6, 4, enable_prefix_caching=False, max_num_seqs=4, policy={"order": by_priority})
    world.add(make_request("a", 8, 9, priority=1), make_request("b", 8, 9, priority=3))  # 3 blocks each, soon 4
    for _ in range(2):
        world.step()
    world.add(make_request("c", 1, 1, priority=2))
    plans = [world.step() for _ in range(5)]
    preempting = next(i for i, plan in enumerate(plans) if plan.preempted)
    assert plans[preempting].admitted == ()
    assert plans[preempting + 1].admitted == (("c", 0),)
    world.finish_all()


def test_a_victim_takes_its_copies_along() -> None:
    """Answer 0 was to copy the shared block in this very step; after its preemption nobody needs that copy."""
    world = World(3, 4, enable_prefix_caching=False, policy={"victim": lambda running: running[0]})
    world.add(make_request("a", 6, 3, n=3))
    plans = world.finish_all()
    hit = next(plan for plan in plans if plan.preempted)
    assert hit.preempted[0] == ("a", "a.1 needed a block")
    assert len(hit.copies) == 1


def test_time_to_first_token_is_stamped_once() -> None:
    world = World(num_blocks=4, block_size=4, enable_prefix_caching=False, max_num_seqs=4)
    world.add(*[make_request(f"r{i}", 4, 12) for i in range(4)])
    world.finish_all()
    last = world.asked[-1]
    assert last.num_preemptions > 0
    assert last.token_times == sorted(set(last.token_times))
    assert last.first_scheduled is not None
    assert last.arrival <= last.first_scheduled < last.token_times[0]
    assert last.finished == last.token_times[-1]

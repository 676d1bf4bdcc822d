"""Requests that share blocks, on the fake model: hits, forks, and what happens when either meets preemption."""

import random

import pytest
from scheduling import World, make_request

PROMPT = [(11 * i) % 997 for i in range(64)]


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)])
def test_the_same_prompt_twice(length: int, cached: int) -> None:
    world = World(16, 16)
    first, second = (make_request(name, PROMPT[:length], 5) for name in ("first", "second"))
    world.add(first)
    world.finish_all()
    world.add(second)
    world.finish_all()
    assert (first.num_cached, second.num_cached) == (0, cached)
    assert first.output_ids == second.output_ids
    assert (world.scheduler.prefix_queries, world.scheduler.prefix_hits) == (2 * length, cached)


def test_a_conversation_reuses_its_answers_too() -> None:
    """The second turn begins with the first turn's prompt *and* answer; all but the last, never computed token hit."""
    world = World(32, 4)
    first = make_request("turn1", PROMPT[:10], 11)
    world.add(first)
    world.finish_all()
    second = make_request("turn2", [*first.token_ids, 1, 2, 3], 4)
    world.add(second)
    world.finish_all()
    assert len(first.token_ids) == 21
    assert second.num_cached == 20


def test_the_last_block_of_a_finished_answer_is_found() -> None:
    world = World(32, 4)
    first = make_request("turn1", PROMPT[:10], 11)  # 20 of 21 tokens are computed: five full blocks
    world.add(first)
    world.finish_all()
    assert world.scheduler.pool.prefix is not None
    assert len(world.scheduler.pool.find([], [*first.token_ids, 7])) == 5


def test_a_token_never_computed_is_never_found() -> None:
    world = World(32, 4)
    first = make_request("turn1", PROMPT[:10], 10)  # 20 tokens, of which the last was only sampled
    world.add(first)
    world.finish_all()
    assert len(world.scheduler.pool.find([], [*first.token_ids, 7])) == 4


def test_two_equal_prompts_in_the_same_step() -> None:
    world = World(16, 4)
    world.add(*[make_request(name, PROMPT[:13], 6) for name in ("a", "b")])
    plan = world.step()
    assert plan.admitted == (("a", 0), ("b", 0))
    world.finish_all()


def test_a_prefix_still_being_computed_is_not_found() -> None:
    world = World(32, 4, max_num_batched_tokens=8)
    world.add(make_request("a", PROMPT[:24], 4))
    world.step()  # 8 tokens of "a" are written and committed
    b = make_request("b", [*PROMPT[:12], 5], 4)
    world.add(b)
    plan = world.step()  # "a" computes 12 more; only its first two blocks exist
    assert dict(plan.admitted).get("b", 8) == 8
    world.finish_all()
    assert (b.num_cached or 0) in (8, 12)


def test_preempted_with_a_hit_and_back_again() -> None:
    world = World(6, 4, max_num_seqs=4, max_num_batched_tokens=16)
    world.add(make_request("a", PROMPT[:9], 2))
    world.finish_all()
    world.add(*[make_request(f"r{i}", [*PROMPT[:8], i], 9) for i in range(4)])
    world.finish_all()
    hit_and_preempted = [r for r in world.asked if r.num_cached and r.num_preemptions]
    assert hit_and_preempted, "this test is about requests that have both"


def test_a_common_beginning_shorter_than_a_block_is_not_shared() -> None:
    world = World(16, 16)
    for name in ("a", "b"):
        world.add(make_request(name, [*PROMPT[:15], ord(name), 3], 4))
        world.finish_all()
    assert [r.num_cached for r in world.asked] == [0, 0]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 20])
def test_n_answers_do_not_write_over_each_other(length: int, caching: bool) -> None:
    world = World(32, 4, enable_prefix_caching=caching)
    world.add(make_request("r", length, 10, n=4, seed=length))
    plans = world.finish_all()
    assert len({tuple(r.output_ids) for r in world.asked}) == 4
    # Four write into the last block of the prompt and one of them keeps it; or, if it is full, answer 0 keeps it and
    # writes behind it, while the three that compute its last token again each do so in a copy.
    assert sum(len(plan.copies) for plan in plans) == 3


def test_a_fork_copies_the_partly_filled_block_and_no_other() -> None:
    world = World(32, 16, enable_prefix_caching=False)
    world.add(make_request("r", 20, 6, n=4))
    plans = world.finish_all()
    assert [len(plan.copies) for plan in plans[:2]] == [0, 3]
    tables = {seq.request_id: seq.block_table for seq in plans[1].seqs}
    assert len({table[0] for table in tables.values()}) == 1
    assert len({table[1] for table in tables.values()}) == 4


@pytest.mark.parametrize("seats", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [5, 6, 8])
def test_a_fork_without_a_seat_or_a_block_waits(num_blocks: int, seats: int) -> None:
    world = World(num_blocks, 4, max_num_seqs=seats)
    world.add(make_request("a", 7, 8, n=5), make_request("b", 3, 4))
    world.finish_all()


def test_four_clients_with_one_prompt_and_four_seeds() -> None:
    world = World(32, 16)
    world.add(*[make_request(f"c{i}", PROMPT[:20], 12, seed=i) for i in range(4)])
    world.finish_all()
    assert len({tuple(r.output_ids) for r in world.asked}) == 4


def test_sixteen_conversations_for_twenty_rounds() -> None:
    rng = random.Random(5)
    world = World(64, 4, max_num_seqs=16, max_num_batched_tokens=32)
    prompts = [[*PROMPT[:7], i, *PROMPT[: i % 5]] for i in range(16)]  # equal but for the last token of a block
    for turn in range(20):
        rng.shuffle(prompts)
        world.add(*[make_request(f"t{turn}.{i}", prompt, 6) for i, prompt in enumerate(prompts)])
        world.finish_all()
    assert world.scheduler.prefix_hits > 0


def test_a_chat_that_outgrows_the_chunk() -> None:
    world = World(64, 4, max_num_batched_tokens=16)
    ids = PROMPT[:10]
    for turn in range(8):
        request = make_request(f"t{turn}", ids, 12)
        world.add(request)
        world.finish_all()
        new = [
            seq for plan in world.plans for seq in plan.seqs if seq.request_id == request.id and seq.phase == "prefill"
        ]
        assert sum(len(seq.tokens) for seq in new) == len(ids) - request.num_cached
        assert len(new) == 1, "with the history cached, the rest fits one chunk"
        ids = [*request.token_ids, 1, 2]
    assert len(ids) > 16 * 4


def test_abort_and_finish_keep_shared_blocks_for_the_others() -> None:
    world = World(32, 4)
    world.add(make_request("r", 10, 12, n=3))
    for _ in range(3):
        world.step()
    world.finish("r")
    world.step()
    world.finish("r.2")
    world.finish_all()
    assert [r.finish_reason for r in world.asked] == ["abort", "length", "abort"]


def test_a_preempted_answer_finds_its_own_blocks_again() -> None:
    """Nobody needed its blocks in the meantime, so only what was not yet a full block is computed a second time."""
    world = World(6, 4, max_num_seqs=2)
    world.add(make_request("old", 8, 10), make_request("new", 3, 12))
    plans = world.finish_all()
    back = [cached for plan in plans[1:] for name, cached in plan.admitted if name == "new"]
    assert back
    assert back[0] > 3, "more than its prompt: a part of its answer too"

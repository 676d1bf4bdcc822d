"""Tiny pools, every block size, prompts at every edge: of the block, the chunk, the budget and the pool."""

import pytest
from scheduling import World, alone, make_request

from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.static import StaticScheduler


def edges(*sizes: int, limit: int) -> list[int]:
    """Lengths one below, at and one above every multiple that matters."""
    near = {1, limit, limit - 1} | {k * size + d for size in sizes for k in (1, 2, 3) for d in (-1, 0, 1)}
    return sorted(length for length in near if 1 <= length <= limit)


@pytest.mark.parametrize("prompt", [15, 16, 17])
def test_a_block_is_taken_exactly_when_it_is_needed(prompt: int) -> None:
    world = World(8, 16)
    world.add(make_request("r", prompt, 33))
    for plan in world.finish_all():
        (seq,) = plan.seqs
        assert len(seq.block_table) == (seq.context + 15) // 16, "never a token late, never a token early"
        assert seq.slots[-1] == seq.block_table[(seq.context - 1) // 16] * 16 + (seq.context - 1) % 16


@pytest.mark.parametrize("kind", [ContinuousScheduler, StaticScheduler])
@pytest.mark.parametrize("num_blocks", range(1, 9))
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7, 16])
def test_tiny_pools_at_every_edge(num_blocks: int, block_size: int, kind: type) -> None:
    capacity = num_blocks * block_size
    world = World(num_blocks, block_size, kind=kind, max_num_seqs=3, max_num_batched_tokens=5)
    for length in edges(block_size, 5, limit=capacity):
        for max_tokens in {1, 2, capacity - length + 1}:
            if length + max_tokens - 1 <= capacity:
                world.add(make_request(f"r{length}.{max_tokens}", length, max_tokens))
    world.finish_all()


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 255, 256])
@pytest.mark.parametrize("caching", [True, False])
def test_every_block_size(block_size: int, caching: bool) -> None:
    num_blocks = max(2, -(-80 // block_size) + 1)
    world = World(num_blocks, block_size, enable_prefix_caching=caching, max_num_seqs=4, max_num_batched_tokens=24)
    for length in edges(block_size, 24, limit=60):
        world.add(make_request(f"r{length}", length, 7, n=1 + length % 2))
    world.finish_all()


def test_one_block_holds_one_request_at_a_time() -> None:
    world = World(1, 16, max_num_seqs=4)
    world.add(*[make_request(f"r{i}", 15, 2) for i in range(3)])
    assert max(plan.running for plan in world.finish_all()) == 1


def test_one_block_of_one_token() -> None:
    world = World(1, 1, max_num_seqs=1, max_num_batched_tokens=1)
    world.add(make_request("r", 1, 1))
    world.finish_all()
    assert world.asked[0].output_ids == alone(world.asked[0])


def test_all_seats_full_and_all_cross_a_border_at_once() -> None:
    for spare in range(4):
        world = World(8 + spare, 4, max_num_seqs=8, max_num_batched_tokens=32, enable_prefix_caching=False)
        world.add(*[make_request(f"r{i}", 3, 9) for i in range(8)])
        world.finish_all()


@pytest.mark.parametrize("budget", [1, 2, 15, 16, 17, 33])
def test_chunks_and_blocks_of_unlike_sizes(budget: int) -> None:
    world = World(8, 16, max_num_seqs=1, max_num_batched_tokens=budget)
    for length in edges(16, budget, limit=100):
        world.add(make_request(f"r{length}", length, 3))
    world.finish_all()


def test_the_context_may_be_filled_to_the_last_token() -> None:
    world = World(8, 4, max_model_len=20)
    for length in (1, 18, 19):
        world.add(make_request(f"r{length}", length, 20 - length))
    world.finish_all()

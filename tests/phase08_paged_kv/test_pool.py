"""The block pool by itself: handing out, sharing, copying, taking back, and never losing count."""

import random
from itertools import pairwise

import pytest

from minifer.errors import CapacityError, InvariantError, UsageError
from minifer.kv_cache.pool import BlockPool


def runs(table: tuple[int, ...]) -> int:
    """Stretches of adjacent blocks in a table."""
    return 1 + sum(b != a + 1 for a, b in pairwise(table))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_round_up(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


def test_a_slot_is_block_and_offset() -> None:
    pool = BlockPool(8, 16)
    table = (5, 2, 7)
    assert [pool.slot(table, p) for p in (0, 15, 16, 31, 32, 47)] == [80, 95, 32, 47, 112, 127]
    assert pool.slots(table, 14, 18) == (94, 95, 32, 33)
    assert pool.slots(table, 16, 17) == (32,)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    table = pool.allocate(3)
    with pytest.raises(CapacityError, match="asked for 2 blocks, but only 1 of 4"):
        pool.allocate(2)
    pool.check([table])
    assert pool.num_free == 1
    pool.grow(table)
    with pytest.raises(CapacityError):
        pool.grow(table)


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(4, 16)
    table = pool.allocate(2)
    pool.free(table)
    with pytest.raises(InvariantError, match="freed twice"):
        pool.free(table)


def test_a_blank_block_cannot_be_shared() -> None:
    with pytest.raises(InvariantError, match="blank"):
        BlockPool(4, 16).fork((1,))


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 1)])
def test_a_pool_needs_room(num_blocks: int, block_size: int) -> None:
    with pytest.raises(UsageError, match="at least one block"):
        BlockPool(num_blocks, block_size)


def test_a_fork_shares_until_somebody_writes() -> None:
    pool = BlockPool(8, 4)
    first = pool.allocate(3)
    second = pool.fork(first)
    assert pool.num_free == 5
    assert all(pool.is_shared(block) for block in first)
    second, (source, target) = pool.own(second, 2)
    assert (source, first[:2]) == (first[2], second[:2])
    assert second[2] == target not in first
    assert not pool.is_shared(first[2])
    assert not pool.is_shared(target)
    pool.check([first, second])
    pool.free(first)
    pool.check([second])
    pool.free(second)
    pool.check()
    assert pool.num_free == 8


def test_check_sees_what_is_wrong() -> None:
    pool = BlockPool(4, 4)
    table = pool.allocate(2)
    for tables in ([], [table, table], [(0, 3)], [(0,)]):
        with pytest.raises(InvariantError):
            pool.check(tables)
    pool.refs[table[0]] += 1
    with pytest.raises(InvariantError):
        pool.check([table])


def test_a_fresh_pool_gives_one_run() -> None:
    pool = BlockPool(64, 16)
    tables = [pool.allocate(8) for _ in range(8)]
    assert [runs(table) for table in tables] == [1] * 8


def test_answers_growing_side_by_side_stay_in_runs() -> None:
    """The room that a table's right neighbour left is what it grows into: 8 answers, 4 blocks more each."""
    pool = BlockPool(8 * 16, 16)
    tables = [pool.allocate(4) for _ in range(8)]
    for _ in range(4):
        tables = [pool.grow(table) for table in tables]
    assert sum(runs(table) for table in tables) <= 12
    assert pool.adjacent / (pool.allocated - 8) > 0.9
    pool.check(tables)


def test_a_full_pool_is_used_to_the_last_block() -> None:
    pool = BlockPool(16, 4)
    singles = [pool.allocate(1) for _ in range(16)]
    kept = singles[::2]
    for table in singles[1::2]:
        pool.free(table)
    table = pool.allocate(8)  # only holes of one block are left
    assert sorted([*table, *(block for (block,) in kept)]) == list(range(16))


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_conserved_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(rng.randint(1, 12), 4, enable_prefix_caching=rng.random() < 0.5)
    tables: list[tuple[int, ...]] = []
    for _ in range(200):
        action = rng.choice(["allocate", "grow", "fork", "own", "free"])
        pick = rng.randrange(len(tables)) if tables else 0
        if action == "allocate" and pool.num_free:
            tables.append(pool.allocate(rng.randint(1, pool.num_free)))
        elif action == "grow" and tables and pool.num_free:
            tables[pick] = pool.grow(tables[pick])
        elif action == "fork" and tables:
            tables.append(pool.fork(tables[pick]))
        elif action == "own" and tables and pool.num_free:
            tables[pick], _ = pool.own(tables[pick], rng.randrange(len(tables[pick])))
        elif action == "free" and tables:
            pool.free(tables.pop(pick))
        pool.check(tables)
    for table in tables:
        pool.free(table)
    assert pool.num_free == pool.num_blocks

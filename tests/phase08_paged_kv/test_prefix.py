"""The prefix cache by itself: what counts as the same, what is found, and who goes first when room is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minifer.errors import CapacityError
from minifer.kv_cache import prefix
from minifer.kv_cache.pool import BlockPool
from minifer.kv_cache.prefix import ROOT, BlockKey, PrefixCache, digest_of, extend_chain

REPO = Path(__file__).resolve().parents[2]


def store(pool: BlockPool, ids: list[int]) -> tuple[int, ...]:
    """Compute a sequence and free it, as a request would: its full blocks stay findable."""
    chain: list[BlockKey] = []
    hit = pool.find(chain, ids)
    table = pool.allocate(pool.blocks_for(len(ids)) - len(hit), hit)
    pool.register(table, chain, ids, len(hit), len(ids) // pool.block_size)
    pool.free(table)
    pool.check()
    return table


def hits(pool: BlockPool, ids: list[int]) -> int:
    """How many tokens of a sequence would come from the cache."""
    return len(pool.find([], ids)) * pool.block_size


def test_ids_that_differ_by_256_are_not_the_same() -> None:
    pool = BlockPool(8, 4)
    store(pool, [1, 2, 3, 70, 5])
    assert hits(pool, [1, 2, 3, 70, 5]) == 4
    assert hits(pool, [1, 2, 3, 326, 5]) == 0


def test_an_equal_block_behind_another_beginning_is_not_the_same() -> None:
    pool = BlockPool(8, 2)
    store(pool, [1, 2, 3, 4, 5])
    assert hits(pool, [9, 9, 3, 4, 5]) == 0
    assert hits(pool, [1, 2, 3, 4, 6]) == 4


def test_near_twins_are_kept_apart_and_both_are_found() -> None:
    """A weaker hash would still answer right, since ids are compared, but it would have room for one of each pair."""
    pool = BlockPool(16, 2)
    for twins in (([1, 2, 3, 4, 5], [9, 9, 3, 4, 5]), ([70, 1, 2, 3, 0], [326, 1, 2, 3, 0])):
        for ids in twins:
            store(pool, ids)
        assert [hits(pool, ids) for ids in twins] == [4, 4]


def test_a_collision_of_digests_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "digest_of", lambda parent, ids: b"all the same")
    pool = BlockPool(8, 2)
    store(pool, [1, 2, 3, 4, 5])
    assert hits(pool, [9, 9, 3, 4, 5]) == 0
    assert hits(pool, [1, 2, 3]) == 2


def test_a_collision_behind_different_parents_is_a_miss() -> None:
    cache = PrefixCache()
    first, second = BlockKey(b"a", ROOT, (1, 2)), BlockKey(b"b", ROOT, (9, 9))
    child = BlockKey(b"c", b"a", (3, 4))
    for block, key in enumerate((first, second, child)):
        assert cache.register(block, key)
    assert cache.find([first, child]) == (0, 2)
    assert cache.find([second, BlockKey(b"c", b"b", (3, 4))]) == (1,)


def test_the_digest_is_the_same_in_every_process() -> None:
    code = "from minifer.kv_cache.prefix import *; print(digest_of(ROOT, [1, 2, 3]).hex())"
    here = digest_of(ROOT, [1, 2, 3]).hex()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        there = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=REPO, capture_output=True, check=True, text=True
        )
        assert there.stdout.strip() == here


def test_only_full_blocks_have_keys() -> None:
    chain: list[BlockKey] = []
    extend_chain(chain, [1, 2, 3], 4)
    assert chain == []
    extend_chain(chain, list(range(11)), 4)
    assert [key.ids for key in chain] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    again = list(chain)
    extend_chain(chain, list(range(12)), 4)
    assert chain[:2] == again
    assert len(chain) == 3


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32)]
)
def test_at_least_one_token_is_left_to_compute(length: int, cached: int) -> None:
    pool = BlockPool(8, 16)
    ids = list(range(length))
    store(pool, ids)
    assert hits(pool, ids) == cached


def test_a_prefix_with_a_hole_is_no_hit() -> None:
    pool = BlockPool(4, 2)
    table = store(pool, [1, 2, 3, 4, 5, 6])
    cache = pool.prefix
    assert cache is not None
    assert hits(pool, [1, 2, 3, 4, 5, 6, 7]) == 6
    cache.idle.move_to_end(table[0], last=False)
    assert cache.evict() == table[0]
    assert hits(pool, [1, 2, 3, 4, 5, 6, 7]) == 0


def test_the_tail_of_a_chain_goes_first() -> None:
    pool = BlockPool(4, 2)
    store(pool, [1, 2, 3, 4, 5, 6])  # three full blocks, one stays blank
    assert hits(pool, [1, 2, 3, 4, 5, 6, 7]) == 6
    for taken, left in ((1, 6), (2, 4), (3, 2), (4, 0)):
        table = pool.allocate(taken)
        assert hits(pool, [1, 2, 3, 4, 5, 6, 7]) == left
        pool.check([table])
        pool.free(table)


def test_the_least_recently_used_goes_first() -> None:
    pool = BlockPool(4, 2)
    store(pool, [1, 2, 0])
    store(pool, [3, 4, 0])
    store(pool, [5, 6, 0])
    store(pool, [1, 2, 9])  # used again, so now the youngest
    held = pool.allocate(2)  # the blank one and the oldest
    assert (hits(pool, [3, 4, 0]), hits(pool, [5, 6, 0]), hits(pool, [1, 2, 0])) == (0, 2, 2)
    pool.check([held])


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4, 2)
    store(pool, [1, 2, 3])
    pool.allocate(3)
    assert hits(pool, [1, 2, 3]) == 2
    assert pool.prefix is not None
    assert pool.prefix.evictions == 0


def test_a_found_block_is_not_counted_as_room() -> None:
    """Idle blocks are free, but not for the request that wants to read them."""
    pool = BlockPool(3, 2)
    store(pool, [1, 2, 3, 4, 5])
    hit = pool.find([], [1, 2, 3, 4, 5])
    assert (len(hit), pool.num_free) == (2, 3)
    assert pool.room_beside(hit) == 1
    with pytest.raises(CapacityError):
        pool.allocate(2, hit)
    table = pool.allocate(1, hit)
    pool.check([table])


def test_equal_blocks_computed_twice_are_both_counted() -> None:
    pool = BlockPool(4, 2)
    ids = [1, 2, 3]
    first, second = pool.allocate(2), pool.allocate(2)
    for table in (first, second):
        pool.register(table, [], ids, 0, 1)
    assert pool.find([], ids) == first[:1]
    pool.check([first, second])
    pool.free(second)
    assert pool.find([], ids) == first[:1]
    pool.free(first)
    pool.check()
    assert pool.num_free == 4


def test_off_means_off() -> None:
    pool = BlockPool(4, 2, enable_prefix_caching=False)
    store(pool, [1, 2, 3, 4, 5])
    assert hits(pool, [1, 2, 3, 4, 5]) == 0
    assert pool.num_free == 4

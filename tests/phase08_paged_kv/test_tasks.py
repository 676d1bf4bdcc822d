"""The lab tasks of phase 08: slots by division, copy on write, blocks that come back, and chains of keys."""

import pytest

from minifer.errors import InvariantError
from minifer.kv_cache.pool import BlockPool
from minifer.kv_cache.prefix import ROOT, BlockKey, PrefixCache, digest_of, extend_chain


def chain_of(ids, size=2):
    """Keys made one after another, by the definition."""
    chain, parent = [], ROOT
    for start in range(0, len(ids) // size * size, size):
        block = tuple(ids[start : start + size])
        chain.append(BlockKey(digest_of(parent, block), parent, block))
        parent = chain[-1].digest
    return chain


@pytest.mark.task("8.1")
def test_slots_are_block_and_place(rng):
    """Scattered tables, any stretch, a tuple."""
    pool = BlockPool(12, 5)
    table = tuple(rng.permutation(12)[:4].tolist())
    for start, stop in ((0, 20), (3, 4), (4, 6), (7, 19), (5, 5)):
        got = pool.slots(table, start, stop)
        assert isinstance(got, tuple)
        assert list(got) == [table[p // 5] * 5 + p % 5 for p in range(start, stop)]


@pytest.mark.task("8.1")
def test_slots_by_hand():
    """Blocks of four, table 7, 2."""
    pool = BlockPool(8, 4)
    assert pool.slots((7, 2), 2, 6) == (30, 31, 8, 9)
    assert pool.slots((7, 2), 5, 6) == (9,)


def forked(num_blocks=8):
    """A pool in which two sequences share three blocks."""
    pool = BlockPool(num_blocks, 4)
    table = pool.allocate(3)
    pool.fork(table)
    return pool, table


@pytest.mark.task("8.2")
def test_own_replaces_one_block():
    """At the end, in the middle, at the beginning: the copy is named, both tables stay correct."""
    for index in (2, 1, 0):
        pool, table = forked()
        mine, (source, target) = pool.own(table, index)
        assert source == table[index]
        assert target not in table
        assert mine == (*table[:index], target, *table[index + 1 :])
        assert (pool.refs[source], pool.refs[target]) == (1, 1)
        assert pool.copied == 1
        pool.check([table, mine])


@pytest.mark.task("8.2")
def test_own_never_hands_out_the_old_block():
    """Also where nobody else holds it: what is to be copied must still be there."""
    pool = BlockPool(3, 4)
    table = pool.allocate(2)
    mine, copy = pool.own(table, 1)
    assert copy == (1, 2)
    assert mine == (0, 2)
    assert pool.num_free == 1
    pool.check([mine])


@pytest.mark.task("8.2")
def test_own_prefers_the_neighbour():
    """The new block follows the one before it, if that place is blank."""
    pool = BlockPool(12, 4)
    table = pool.allocate(2)
    other = pool.fork(table)
    mine, _ = pool.own((table[0],), 0)
    assert len(mine) == 1
    pool.free((other[0],))
    longer = pool.allocate(3)
    pool.fork(longer)
    before = pool.adjacent
    new, (_, target) = pool.own((longer[2], longer[1]), 1)
    assert target == longer[2] + 1
    assert new == (longer[2], target)
    assert pool.adjacent == before + 1


@pytest.mark.task("8.3")
def test_release_frees_at_zero():
    """Held twice: the first release frees nothing."""
    pool, table = forked()
    pool._release(table[1])
    assert (pool.refs[table[1]], pool.num_free) == (1, 5)
    pool._release(table[1])
    assert (pool.refs[table[1]], pool.num_free) == (0, 6)
    held = (table[0], table[2])
    pool.check([held, held])


@pytest.mark.task("8.3")
def test_release_keeps_what_can_be_found():
    """A registered block becomes idle, in the order of release; an unregistered one is blank."""
    pool = BlockPool(6, 2)
    table, chain = pool.allocate(3), []
    pool.register(table, chain, [1, 2, 3, 4, 5], 0, 2)
    for block in (table[1], table[2], table[0]):
        pool._release(block)
    assert list(pool.prefix.idle) == [table[1], table[0]]
    assert pool.num_free == 6
    pool.check()


@pytest.mark.task("8.3")
def test_release_of_nothing_is_a_bug():
    """Freed twice, and no count below zero; without prefix caching as well."""
    for caching in (True, False):
        pool = BlockPool(4, 2, enable_prefix_caching=caching)
        (block,) = pool.allocate(1)
        pool._release(block)
        with pytest.raises(InvariantError):
            pool._release(block)
        pool.check()


@pytest.mark.task("8.4")
def test_chain_holds_full_blocks(rng):
    """Of 0 to 9 tokens, in blocks of 1 to 4."""
    for length in range(10):
        for size in (1, 2, 3, 4):
            ids, chain = rng.integers(0, 500, length).tolist(), []
            extend_chain(chain, ids, size)
            assert chain == chain_of(ids, size)
            assert all(isinstance(key.ids, tuple) for key in chain)


@pytest.mark.task("8.4")
def test_chain_grows_by_what_it_lacks(rng):
    """Token by token it is the chain of the whole, and the keys that were there stay the same objects."""
    ids, chain = rng.integers(0, 500, 9).tolist(), []
    for stop in range(1, 10):
        before = list(chain)
        extend_chain(chain, ids[:stop], 2)
        assert all(old is new for old, new in zip(before, chain, strict=False))
    assert chain == chain_of(ids)


@pytest.mark.task("8.4")
def test_same_ids_behind_another_prefix_are_another_key():
    """The whole prefix counts."""
    one, two = [], []
    extend_chain(one, [1, 2, 5, 6], 2)
    extend_chain(two, [3, 4, 5, 6], 2)
    assert one[1].ids == two[1].ids
    assert one[1].digest != two[1].digest
    assert one[1].parent == one[0].digest


def filled(ids):
    """A cache that holds the blocks 10, 11, ... of these ids."""
    cache, chain = PrefixCache(), chain_of(ids)
    for place, key in enumerate(chain):
        cache.register(10 + place, key)
    return cache, chain


@pytest.mark.task("8.5")
def test_find_goes_as_far_as_the_prefix_is_the_same(rng):
    """Whole, longer, shorter, another beginning, another middle."""
    ids = rng.integers(0, 500, 8).tolist()
    cache, chain = filled(ids)
    assert cache.find(chain) == (10, 11, 12, 13)
    assert cache.find(chain_of([*ids, 1, 2])) == (10, 11, 12, 13)
    assert cache.find(chain[:2]) == (10, 11)
    assert cache.find(chain_of([501, *ids[1:]])) == ()
    assert cache.find(chain_of([*ids[:4], 501, *ids[5:]])) == (10, 11)
    assert cache.find([]) == ()


@pytest.mark.task("8.5")
def test_find_stops_at_a_hole():
    """A block in the middle was evicted: what is behind it is of no use."""
    cache, chain = filled([1, 2, 3, 4, 5, 6])
    cache.idle[11] = None
    cache.evict()
    assert cache.find(chain) == (10,)


@pytest.mark.task("8.5")
def test_find_trusts_no_digest():
    """Two blocks whose digests collide are not the same."""
    cache, chain = filled([1, 2, 3, 4])
    forged = chain[1]._replace(ids=(9, 9))
    assert cache.find([chain[0], forged]) == (10,)
    assert cache.find([chain[0]._replace(parent=b"x")]) == ()

"""The lab tasks of phase 05: slots, stretches, and steps that add up to the same logits."""

from itertools import pairwise

import numpy as np
import pytest

from minifer.errors import RequestError, UsageError
from minifer.incremental import Incremental
from minifer.kv_cache.store import KVStore, runs
from minifer.ops.batch import make_batch


class SumRoom:
    """A model small enough to check by head: a token's logits are the sum over all cached tokens up to it."""

    def __init__(self):
        self.lengths = []

    def embed(self, embedding, tokens):  # noqa: ARG002
        self.lengths.append(len(tokens))
        return np.asarray(tokens, dtype=np.float64)

    def rope_table(self, positions):
        return np.asarray(positions)

    def attention_block(self, x, layer, rope_table, batch, store, index):  # noqa: ARG002
        store[np.asarray(batch.slots)] = x * (rope_table + 1)
        return np.array([store[: position + 1].sum() for position in rope_table])

    def mlp_block(self, x, layer):  # noqa: ARG002
        return x

    def head(self, x, weights, rows):  # noqa: ARG002
        return x[np.asarray(rows)].reshape(-1, 1)


class Cells(np.ndarray):
    """An array that says how many it holds, as a store does."""

    block_size = 12


def sequence():
    """An empty sequence of at most 12 tokens, and its room."""
    from types import SimpleNamespace

    room = SumRoom()
    return Incremental(SimpleNamespace(embedding=None, layers=[None]), np.full(12, np.nan).view(Cells), room), room


def want(tokens):
    """The sum of token times place, from 1."""
    return float(sum(t * (i + 1) for i, t in enumerate(tokens)))


@pytest.mark.task("5.1")
def test_write_puts_each_token_into_its_slot(rng):
    """Scattered slots, three kv heads of four numbers; other slots and layers keep their NaN."""
    store = KVStore(2, 3, 4, num_blocks=3, block_size=4, poison=True)
    slots = rng.permutation(12)[:5]
    k, v = (rng.normal(size=(5, 3, 4)).astype(np.float32) for _ in range(2))
    store.write(1, slots, k, v)
    for t, slot in enumerate(slots):
        np.testing.assert_array_equal(store.k(1)[:, :, slot], k[t])
        np.testing.assert_array_equal(store.v(1)[:, slot], v[t])
    rest = [s for s in range(12) if s not in slots]
    assert np.isnan(store.k(1)[:, :, rest]).all()
    assert np.isnan(store.v(1)[:, rest]).all()
    assert np.isnan(store.k(0)).all()
    assert np.isnan(store.v(0)).all()


@pytest.mark.task("5.1")
def test_write_keeps_what_was_there(rng):
    """A second write beside the first; another over it."""
    store = KVStore(1, 2, 3, num_blocks=1, block_size=6)
    first, second = (rng.normal(size=(2, 2, 3)).astype(np.float32) for _ in range(2))
    store.write(0, np.array([0, 1]), first, -first)
    store.write(0, np.array([1, 2]), second, -second)
    np.testing.assert_array_equal(store.k(0)[:, :, 0], first[0])
    np.testing.assert_array_equal(store.k(0)[:, :, 1:3].transpose(2, 0, 1), second)
    np.testing.assert_array_equal(store.v(0)[:, 1:3].transpose(1, 0, 2), -second)


@pytest.mark.task("5.2")
def test_runs_by_hand():
    """Adjacent blocks are one stretch, the last ends where the tokens do."""
    assert runs([2, 3, 0], 9, 4) == [(8, 16), (0, 1)]
    assert runs([2, 3, 4], 12, 4) == [(8, 20)]
    assert runs([5, 4], 5, 4) == [(20, 24), (16, 17)]
    assert runs([1, 2, 3], 4, 4) == [(4, 8)]
    assert runs([1], 0, 4) == []


@pytest.mark.task("5.2")
def test_runs_cover_every_slot_in_order(rng):
    """Written out, the stretches are the slots of the tokens; and neighbouring stretches never touch."""
    for _ in range(30):
        table, size = rng.permutation(8)[:5].tolist(), int(rng.integers(1, 6))
        length = int(rng.integers(1, 5 * size + 1))
        found = runs(table, length, size)
        assert [s for a, b in found for s in range(a, b)] == [table[p // size] * size + p % size for p in range(length)]
        assert all(left[1] != right[0] for left, right in pairwise(found))


@pytest.mark.task("5.2")
def test_runs_refuse_more_than_the_table_holds():
    """One token too many."""
    with pytest.raises(UsageError):
        runs([0, 1], 9, 4)


@pytest.mark.task("5.3")
def test_steps_see_what_came_before(rng):
    """Three steps of different lengths give the logits of the whole."""
    tokens = rng.integers(1, 50, 8).tolist()
    growing, _ = sequence()
    for start, stop in ((0, 3), (3, 4), (4, 8)):
        logits = growing.step(tokens[start:stop])
        assert logits.tolist() == [[want(tokens[:stop])]]
        assert growing.length == stop


@pytest.mark.task("5.3")
def test_a_step_can_give_all_logits(rng):
    """One row a token."""
    tokens = rng.integers(1, 50, 5).tolist()
    growing, _ = sequence()
    growing.step(tokens[:2])
    assert growing.step(tokens[2:], all_logits=True).ravel().tolist() == [want(tokens[:n]) for n in (3, 4, 5)]


@pytest.mark.task("5.3")
def test_a_step_refuses_nothing_and_too_much():
    """And changes nothing by refusing; the last free place can be used."""
    growing, room = sequence()
    growing.step(list(range(1, 12)))
    for tokens in ([], [1, 2]):
        with pytest.raises(RequestError):
            growing.step(tokens)
    assert growing.length == 11
    assert room.lengths == [11]
    growing.step([5])
    assert growing.length == 12


@pytest.mark.task("5.4")
def test_prefill_in_chunks_is_prefill_at_once(rng):
    """The same logits; the number and lengths of the steps are as asked."""
    tokens = rng.integers(1, 50, 7).tolist()
    for chunk, steps in ((None, [7]), (7, [7]), (9, [7]), (3, [3, 3, 1]), (1, [1] * 7), (2, [2, 2, 2, 1])):
        growing, room = sequence()
        assert growing.prefill(tokens, chunk).tolist() == [[want(tokens)]]
        assert room.lengths == steps
        assert growing.length == 7


@pytest.mark.task("5.4")
def test_prefill_of_nothing_is_refused():
    """There is no next token of nothing; but a second prefill goes behind the first."""
    growing, _ = sequence()
    with pytest.raises(RequestError):
        growing.prefill([])
    growing.prefill([4, 5])
    assert growing.prefill([6, 7, 8], 2).tolist() == [[want([4, 5, 6, 7, 8])]]
    assert make_batch([([1], 0, (0,))], 4).num_tokens == 1

"""Phase 05: the theorem of the KV cache. However a text is cut into steps, its logits are the same."""

import numpy as np
import pytest

from minifer.errors import RequestError, UsageError
from minifer.kv_cache.store import KVStore, runs
from minifer.meter import Meter
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch
from tests.models import CONFIGS, ROOMS, Fixture, prompt_of

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


#: Every family in every room; with several processes, two of them.
PAIRS = [
    (name, room) for room in ROOMS for name in CONFIGS if room in ("reference", "cpu") or name in ("llama3", "qwen3")
]


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def model(request):
    name, room = request.param
    model = Fixture(CONFIGS[name], room)
    yield model
    model.close()


@pytest.fixture(scope="module")
def whole(model):
    """Logits of every position of a 23-token text, computed in one step by the reference: the uncached answer."""
    ids = prompt_of(model.config, 23)
    return ids, Fixture(model.config).sequence().step(ids, all_logits=True)


@pytest.mark.parametrize("cuts", [[1] * 23, [7, 7, 7, 2], [22, 1], [1, 22], [5, 1, 1, 9, 7]], ids=str)
def test_cached_equals_uncached(model, whole, cuts):
    ids, want = whole
    sequence, got, start = model.sequence(), [], 0
    for cut in cuts:
        got.append(np.array(sequence.step(ids[start : start + cut], all_logits=True)))
        start += cut
    np.testing.assert_allclose(np.concatenate(got), want, **CLOSE)


@pytest.mark.parametrize("chunk", [1, 3, 7, 22, 23, 24, None])
def test_chunked_prefill_equals_one_shot(model, whole, chunk):
    ids, want = whole
    np.testing.assert_allclose(model.sequence().prefill(ids, chunk), want[-1:], **CLOSE)


def test_logits_only_for_the_rows_asked_for(model, whole):
    ids, want = whole
    assert model.sequence().step(ids).shape == (1, model.config.vocab_size)
    np.testing.assert_allclose(model.sequence().step(ids), want[-1:], **CLOSE)


def test_uneven_sequences_in_one_batch_equal_each_alone(model):
    """Lengths 1, 5 and 17, one of them with a past: no padding, no position shared, no row sees a neighbour."""
    alone = []
    for length, seed in ((1, 3), (5, 4), (17, 5)):
        alone.append(np.array(model.sequence().step(prompt_of(model.config, length, seed))))
    store = model.ops.new_store(12, 4, poison=True)
    tables = [[7], [3, 9], [0, 1, 11, 5, 2]]
    past = prompt_of(model.config, 17, 5)
    forward(model.weights, make_batch([(past[:6], 0, tables[2])], 4), store, model.ops)
    sequences = [
        (prompt_of(model.config, 1, 3), 0, tables[0]),
        (prompt_of(model.config, 5, 4), 0, tables[1]),
        (past[6:], 6, tables[2]),
    ]
    together = forward(model.weights, make_batch(sequences, 4), store, model.ops)
    np.testing.assert_allclose(together, np.concatenate(alone), **CLOSE)


def test_paged_equals_contiguous(model, whole):
    """Shuffled blocks of 4 hold the same sequence as one stretch does, at every edge of a block."""
    ids, want = whole
    store = model.ops.new_store(9, 4, poison=True)
    table, done = [8, 1, 4, 0, 6, 3], 0
    for cut in (3, 1, 1, 4, 8, 6):
        batch = make_batch([(ids[done : done + cut], done, table)], 4)
        done += cut
        got = forward(model.weights, batch, store, model.ops)
        np.testing.assert_allclose(got, want[done - 1 : done], **CLOSE)


def test_a_decode_step_computes_one_position():
    meter = Meter()
    model = Fixture(CONFIGS["llama2"], meter=meter)
    sequence = model.sequence()
    sequence.prefill(prompt_of(model.config, 20))
    meter.reset()
    sequence.decode_step(3)
    assert meter.counts["qkv"].positions == model.config.num_hidden_layers
    assert meter.counts["head"].positions == 1


def test_truncate_goes_back_in_time(model, whole):
    ids, want = whole
    sequence = model.sequence()
    sequence.step(ids[:9] + prompt_of(model.config, 6, seed=8))
    sequence.truncate(9)
    np.testing.assert_allclose(sequence.step(ids[9:]), want[-1:], **CLOSE)


def test_capacity_is_a_limit_and_not_a_wrap():
    model = Fixture(CONFIGS["llama2"])
    sequence = model.sequence(capacity=8)
    sequence.step(prompt_of(model.config, 8))  # exactly full is allowed
    with pytest.raises(RequestError, match="8 \\+ 1"):
        sequence.decode_step(1)
    with pytest.raises(RequestError, match="at least one"):
        sequence.step([])
    with pytest.raises(RequestError, match="truncate"):
        sequence.truncate(9)


def test_runs_join_adjacent_blocks_and_keep_order():
    assert runs([2, 3, 4], 12, 4) == [(8, 20)]
    assert runs([4, 3, 2], 12, 4) == [(16, 20), (12, 16), (8, 12)]
    assert runs([2, 3, 0], 8, 4) == [(8, 16)]
    assert runs([2, 3, 0], 9, 4) == [(8, 16), (0, 1)]
    assert runs([5], 1, 256) == [(1280, 1281)]
    assert runs([], 0, 4) == []
    with pytest.raises(UsageError, match="13 tokens"):
        runs([2, 3, 4], 13, 4)


def test_store_writes_where_it_is_told():
    rng = np.random.default_rng(5)
    store = KVStore(2, 3, 4, num_blocks=5, block_size=2, poison=True)
    k, v = rng.standard_normal((2, 4, 3, 4)).astype(np.float32)
    store.write(1, np.array([9, 0, 3, 4]), k, v)
    np.testing.assert_array_equal(store.k(1)[:, :, 3], k[2])
    np.testing.assert_array_equal(store.v(1)[:, 9], v[0])
    assert np.isnan(store.k(0)).all()
    assert np.isnan(store.v(1)[:, [1, 2, 5, 6, 7, 8]]).all()


def test_copied_blocks_are_copies():
    rng = np.random.default_rng(6)
    store = KVStore(2, 3, 4, num_blocks=4, block_size=2)
    k, v = rng.standard_normal((2, 2, 3, 4)).astype(np.float32)
    for layer in range(2):
        store.write(layer, np.array([2, 3]), k + layer, v - layer)
    store.copy_blocks([(1, 3), (3, 0)])  # in order: block 0 is a copy of a copy
    store.write(1, np.array([2]), k[:1] * 0, v[:1] * 0)
    for block in (0, 3):
        np.testing.assert_array_equal(store.k(1)[:, :, 2 * block], (k + 1)[0])
        np.testing.assert_array_equal(store.v(0)[:, 2 * block + 1], v[1])


def test_bytes_per_token_of_smollm2():
    """46,080 bytes in float32: 30 layers x 2 x 3 kv heads x 64 x 4. By query heads it would be three times that."""
    store = KVStore(30, 3, 64, num_blocks=1, block_size=10)
    assert store.nbytes == 10 * 46_080


@pytest.mark.parametrize("sizes", [(0, 1, 2, 1, 1), (1, 1, 2, 0, 16), (1, 1, 2, 4, -1)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(UsageError, match="positive"):
        KVStore(*sizes)

"""Phase 09: the GPU room equals the reference, and the theorems of phases 05 and 08 hold in it.

Families, number types, chunks, company, scattered blocks: none of them may change the logits beyond the rounding of the
type. The reference runs in float32 on weights rounded to that type, so that only the room's own rounding is left.
"""

import numpy as np
import pytest

from minifer.apps.testing.strict_machine import machine
from minifer.errors import InvariantError
from minifer.meter import Meter
from minifer.model.transformer import forward
from minifer.ops import open_room
from minifer.ops.batch import make_batch
from minifer.ops.cuda import _rows_for
from tests.gpu_rooms import DEVICES, NEAR, OnGpu, host
from tests.models import CONFIGS, prompt_of

pytestmark = pytest.mark.parametrize("device", DEVICES)

SCATTERED = [3, 1, 5, 2, 7, 0]


FIRST = ("float32", "llama3")
"""The default run has one row and one column of the table of families and number types; `--slow` has all of it."""
EVERY = [
    pytest.param(family, dtype, marks=() if dtype == FIRST[0] or family == FIRST[1] else pytest.mark.slow)
    for family in CONFIGS
    for dtype in NEAR
]


@pytest.mark.parametrize(("family", "dtype"), EVERY)
def test_the_room_equals_the_reference(family, dtype, device):
    """A prompt in scattered blocks beside a lone token (so both kernels of attention run), then a chunk behind it."""
    model = OnGpu(CONFIGS[family], dtype, device)
    ids = prompt_of(model.config, 22)
    want, store = model.expected(ids), model.store(12, 4)
    got = model.logits([(ids[:17], 0, SCATTERED), (ids[:1], 0, [9])], store)
    model.assert_near(got, np.concatenate([want[:17], want[:1]]))
    model.assert_near(model.logits([(ids[17:], 17, SCATTERED)], store), want[17:])
    model.ops.close()


def test_chunks_of_every_size_give_one_prefill(device):
    """Few rows go through our own products, many through cuBLAS: from 1 to 16 rows and back to one."""
    model = OnGpu(CONFIGS["llama3"], "float32", device)
    ids = prompt_of(model.config, 50)
    store, got, start = model.store(13, 4), [], 0
    for size in (1, 2, 3, 5, 8, 9, 16, 4, 1, 1):
        got.append(model.logits([(ids[start : start + size], start, list(range(13)))], store))
        start += size
    model.assert_near(np.concatenate(got), model.expected(ids))


def test_company_and_place_change_nothing(device):
    """Three sequences of uneven length, one of them long, at a step's every place; decode rows in between."""
    model = OnGpu(CONFIGS["smollm2"], "float32", device)
    first, second, third = (prompt_of(model.config, n, seed=n) for n in (9, 4, 30))
    store = model.store(24, 4)
    tables = ([11, 2, 9], [4, 20], [0, 1, 3, 5, 6, 7, 8, 10])
    model.logits([(first[:-1], 0, tables[0]), (second[:-1], 0, tables[1])], store)
    got = model.logits([(first[-1:], 8, tables[0]), (third, 0, tables[2]), (second[-1:], 3, tables[1])], store)
    want = np.concatenate([model.expected(first)[-1:], model.expected(third), model.expected(second)[-1:]])
    model.assert_near(got, want)


def test_a_window_forgets(device):
    """Sliding window 7: decode at every length around it."""
    model = OnGpu(CONFIGS["mistral"], "float32", device)
    ids = prompt_of(model.config, 20)
    store, want = model.store(5, 4), model.expected(ids)
    got = [model.logits([([token], i, [4, 0, 3, 1, 2])], store) for i, token in enumerate(ids)]
    model.assert_near(np.concatenate(got), want)


def test_only_the_asked_rows_have_logits(device):
    """A chunk that samples nothing asks for none; the next step is not disturbed."""
    model = OnGpu(CONFIGS["qwen2"], "float32", device)
    ids = prompt_of(model.config, 21)
    store = model.store(8, 4)
    batch = make_batch([(ids[:12], 0, SCATTERED)], 4, xp=model.device.xp)
    none = batch.__class__(batch.tokens, batch.positions, batch.slots, batch.spans, batch.logit_rows[:0])
    assert forward(model.weights, none, store, model.ops).shape == (0, model.config.vocab_size)
    model.assert_near(model.logits([(ids[12:], 12, SCATTERED)], store, all_logits=False), model.expected(ids)[-1:])


def test_copied_blocks_are_the_same(device):
    """Copy-on-write: a copied block answers like its original."""
    model = OnGpu(CONFIGS["qwen3"], "float16", device)
    ids = prompt_of(model.config, 10)
    store = model.store(6, 4)
    model.logits([(ids[:-1], 0, [0, 1, 2])], store)
    store.copy_blocks([(2, 5), (1, 4)])
    model.assert_near(model.logits([(ids[-1:], 9, [0, 4, 5])], store), model.expected(ids)[-1:])


@pytest.mark.parametrize("family", CONFIGS)
def test_the_meter_counts_what_the_reference_counts(family, device):
    """The same operations with the same FLOPs, and in float32 the same bytes, though the kernels are fused."""
    meter, other = Meter(), Meter()
    model = OnGpu(CONFIGS[family], "float32", device, meter=meter)
    ids = prompt_of(model.config, 12)
    sequences = [(ids, 0, [1, 2, 3]), (ids[:1], 0, [0])]
    model.logits(sequences, model.store(4, 4), all_logits=False)
    reference = open_room("reference", model.config, model.reference.device, other)
    forward(model.plain, make_batch(sequences, 4), reference.new_store(4, 4), reference)
    assert meter.counts == other.counts


def test_the_embedding_stays_one_array_where_it_is_tied(device):
    """A tied head costs no memory."""
    model = OnGpu(CONFIGS["llama3"], "float16", device)
    assert model.weights.head is model.weights.embedding
    assert host(model.device, model.weights.embedding).dtype == np.float16


def test_a_block_that_the_cache_lacks_is_refused(device):
    """A kernel would read and write past the end of the cache without a word."""
    model = OnGpu(CONFIGS["llama2"], "float32", device)
    with pytest.raises(InvariantError, match="block 7"):
        model.logits([([1, 2], 0, [7])], model.store(6, 4))


def test_rows_are_padded_as_the_kernels_need_them(device):
    assert [_rows_for(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [1, 2, 4, 4, 8, 8, 16, 16, 24]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_order_of_threads_changes_a_bit(device, seed, monkeypatch):
    """No kernel adds up in an order that chance decides, so a step gives the same bits every time."""
    model = OnGpu(CONFIGS["qwen3"], "float16", device)
    ids = prompt_of(model.config, 13)
    whole = model.logits([(ids[:12], 0, [3, 0, 2, 1])], model.store(4, 4))
    monkeypatch.setattr(machine, "seed", seed)
    store = model.store(4, 4)
    np.testing.assert_array_equal(model.logits([(ids[:12], 0, [3, 0, 2, 1])], store), whole)
    model.assert_near(model.logits([(ids[12:], 12, [3, 0, 2, 1])], store), model.expected(ids)[12:])

"""Phase 03: the CPU room. That it equals the reference is checked wherever a room is a parameter; here, the rest."""

import importlib.util
import os
import signal

import numpy as np
import pytest

from minifer.device import select_device
from minifer.errors import DeviceError, UsageError
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch
from tests.models import CONFIGS, Fixture, prompt_of

if importlib.util.find_spec("minifer.ops.cpu") is None:
    pytest.skip("there is no CPU room in this installation", allow_module_level=True)

from minifer.ops import cpu, ranks

several = pytest.mark.skipif(ranks.most_ranks() == 1, reason="one process only on this system")


@pytest.fixture
def two():
    model = Fixture(CONFIGS["llama2"], "cpu-2")
    yield model
    model.close()


def test_shares_cover_everything_once():
    for total in (1, 2, 15, 61):
        for count in range(1, 8):
            parts = [ranks.share(total, count, rank) for rank in range(count)]
            assert [i for part in parts for i in range(total)[part]] == list(range(total))
            sizes = [part.stop - part.start for part in parts]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 23, 24, 40])
@pytest.mark.parametrize("n", [1, 7, 48, 61])
def test_every_kernel_is_the_same_product(rows, n, monkeypatch):
    monkeypatch.setattr(cpu, "SMALL_PRODUCT", 2000)  # so that small shapes are cut into pieces too
    rng = np.random.default_rng(rows * 100 + n)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, 40), (rows, 40)))
    wide = np.full((rows, n + 5), np.nan, np.float32)
    cpu.linear(w, x, wide[:, 2 : n + 2])
    np.testing.assert_allclose(wide[:, 2 : n + 2], x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-5)
    assert np.isnan(wide[:, :2]).all()
    assert np.isnan(wide[:, n + 2 :]).all()


def test_folding_pairs_next_to_each_other_turns_rope_into_a_complex_product():
    from minifer.ops import reference

    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 2, 6)).astype(np.float32)
    frequencies, positions = reference.rope_frequencies(6, 100.0), np.array([0, 3, 9, 40])
    want = reference.rope(x, *reference.rope_table(positions, frequencies))
    got = np.ascontiguousarray(x.reshape(4, 2, 2, 3).swapaxes(2, 3).reshape(4, 2, 6))
    cpu.rotate(got, cpu.turns(positions, frequencies)[:, None])
    np.testing.assert_allclose(got.reshape(4, 2, 3, 2).swapaxes(2, 3).reshape(4, 2, 6), want, atol=1e-6)


def test_swiglu_of_large_values_is_finite():
    z = np.array([[-200.0, -1.0, 0.0, 1.0, 200.0]], np.float32)
    out = np.empty_like(z)
    cpu.swiglu(np.concatenate([z / 2, np.ones_like(z)], axis=1), out)
    z64 = z.astype(np.float64)
    np.testing.assert_allclose(out, z64 / (1 + np.exp(-z64)), rtol=1e-5, atol=1e-6)


def softmax64(scores):
    z = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("shift", [0.0, -30.0, 39.0, 41.0, 300.0])
def test_exponentials_with_and_without_a_shift(shift):
    """Whatever is hidden weighs nothing, and the weights are those of a softmax at every height of the scores."""
    rng = np.random.default_rng(5)
    scores = rng.normal(0, 3, (7, 33)).astype(np.float32)
    scores += np.float32(shift - scores.max())
    scores[2, 5:] = -np.inf
    want = softmax64(scores)
    total = cpu.plain_exponentials(scores)
    np.testing.assert_allclose(scores / total, want, rtol=2e-5, atol=1e-12)


def test_a_row_far_below_the_others_asks_for_the_shift():
    """Without it the row would be all zeros: `None`, before anything is divided by nothing."""
    scores = np.zeros((3, 4), np.float32)
    scores[1] = -200
    assert cpu.plain_exponentials(scores.copy()) is None
    np.testing.assert_array_equal(cpu.exponentials(scores), np.full((3, 1), 4))


@pytest.mark.parametrize(("up", "down"), [(1.0, 1.0), (300.0, 1.0), (1.0, 300.0), (300.0, 300.0)])
def test_a_tile_of_queries_with_scores_of_any_size(up, down):
    """One head's scores near 0, another's far above or below it; two query heads to a kv head; the cache in pieces."""
    rng = np.random.default_rng(4)
    q, keys = rng.standard_normal((5, 4, 6)).astype(np.float32), rng.standard_normal((2, 6, 40)).astype(np.float32)
    v = rng.standard_normal((2, 40, 3 * 2)).astype(np.float32)
    q[:, 2] *= np.float32(up)
    q[:, 3] = -np.abs(q[:, 3]) * np.float32(down)
    keys[1] = np.abs(keys[1])
    tile = cpu.Tile(0, 5, [(20, 27), (3, 5)], 9, cpu._hidden(5, 9, 1000), None)
    out = np.full((5, 4, 6), np.nan, np.float32)
    cpu.attend_many(q, keys, v, tile, [(0, slice(0, 2)), (1, slice(2, 4))], out)
    slots = [*range(20, 27), 3, 4]
    for head in range(4):
        scores = q[:, head].astype(np.float64) @ keys[head // 2][:, slots]
        scores[np.arange(9)[None] > np.arange(5)[:, None] + 4] = -np.inf
        want = softmax64(scores) @ v[head // 2][slots]
        np.testing.assert_allclose(out[:, head], want, rtol=1e-4, atol=2e-4)


def test_ranks_trade_their_shares_from_tile_to_tile():
    """Nine heads on two ranks: five and four, then four and five. Every head once a tile."""
    ranks = [[cpu.readers_of(9, 3, cpu.share(9, 2, r)) for r in pair] for pair in ((0, 1), (1, 0))]
    assert [[r.heads for r in rank] for rank in ranks] == [[slice(0, 5), slice(5, 9)], [slice(5, 9), slice(0, 5)]]
    assert ranks[0][1].groups == [(0, slice(0, 1)), (1, slice(1, 4))]
    assert ranks[0][1].kv_heads == slice(1, 3)


def test_batch_invariant_means_the_same_bits():
    """Alone or in company, in one go or in chunks: not close, equal."""
    model = Fixture(CONFIGS["qwen3"], "cpu-invariant")
    ids = prompt_of(model.config, 21)
    whole = np.array(model.sequence().step(ids, all_logits=True))
    sequence = model.sequence()
    one_by_one = np.concatenate([np.array(sequence.decode_step(i)) for i in ids])
    store = model.ops.new_store(12, 4)
    tables = [[3, 1], [11, 0, 4, 6, 2, 5]]
    batch = make_batch([(prompt_of(model.config, 5, 9), 0, tables[0]), (ids, 0, tables[1])], 4)
    together = forward(model.weights, batch, store, model.ops)
    np.testing.assert_array_equal(one_by_one, whole)
    np.testing.assert_array_equal(together[1], whole[-1])
    model.close()


@several
def test_a_step_that_breaks_off_leaves_the_ranks_in_step(two, monkeypatch):
    """Ctrl-C in the middle of a layer: the next step is right all the same."""
    ids = prompt_of(two.config, 9)
    want = np.array(two.sequence().step(ids))
    plain = cpu.Rank.mlp_block

    def interrupted(rank, index):
        if index == 1:
            raise KeyboardInterrupt
        plain(rank, index)

    for _ in range(3):
        monkeypatch.setattr(cpu.Rank, "mlp_block", interrupted)
        with pytest.raises(KeyboardInterrupt):
            two.sequence().step(ids)
        monkeypatch.setattr(cpu.Rank, "mlp_block", plain)
        np.testing.assert_array_equal(two.sequence().step(ids), want)


@several
def test_a_rank_that_dies_is_an_error_and_not_a_hang(two):
    process = two.ops._peers[0]._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(DeviceError, match="worker process 1"):
        two.sequence().step([1, 2, 3])


@several
def test_close_ends_the_ranks_and_may_be_called_twice():
    model = Fixture(CONFIGS["llama2"], "cpu-2")
    process = model.ops._peers[0]._process
    model.sequence().step([1, 2])
    model.close()
    assert process.returncode == 0
    model.close()


@several
def test_a_room_without_weights_closes_without_a_word(capfd):
    ops = cpu.Ops(CONFIGS["llama2"], select_device("cpu"), threads=2)
    process = ops._peers[0]._process
    ops.close()
    assert process.returncode == 0
    assert capfd.readouterr().err == ""


@several
def test_a_room_that_is_forgotten_ends_its_ranks():
    model = Fixture(CONFIGS["llama2"], "cpu-2")
    process = model.ops._peers[0]._process
    del model
    assert process.wait(timeout=20) is not None


@pytest.mark.parametrize("threads", [0, -2])
def test_a_number_of_threads_below_one_is_refused(threads):
    with pytest.raises(UsageError, match=str(threads)):
        cpu.Ops(CONFIGS["llama2"], None, threads=threads)


def test_more_rows_than_there_is_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(ranks, "MAX_ROWS", 16)
    model = Fixture(CONFIGS["llama2"], "cpu")
    with pytest.raises(UsageError, match="17"):
        model.sequence().step(prompt_of(model.config, 17))
    assert np.isfinite(model.sequence().step(prompt_of(model.config, 16))).all()

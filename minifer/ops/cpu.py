"""The CPU room: the same operations as `reference.py`, near the limit of what the machine can read.

Decoding one token reads every weight once and does two FLOPs with each: the step takes as long as reading takes. A
NumPy program misses that limit for three reasons, and this file is the answer to each.

**Waiting.** Two threads of a BLAS library that meet after each of 120 small products spend a third of their time
waking each other up, and Python's own threads share one lock. So each core gets a *rank*: a process with one BLAS
thread, its own rows of every weight, and the same program as the others (this is tensor parallelism, as on several
GPUs, with shared memory as the wire). Ranks meet five times a layer by watching a counter in shared memory.

**Copying.** Activations, cache and logits live in memory that all ranks see, allocated once. A rank reads the whole
input of a layer and writes its own columns of the output, so nothing is sent and nothing is added up.

**Calling.** Each NumPy call costs half a microsecond or more, and a step makes thousands. So gains, the 1/sqrt(D) of
attention and the half of SwiGLU are folded into the weights when they are loaded; pairs of RoPE are stored next to each
other, so that a rotation is one complex product.

Elsewhere than on Linux and x86-64 (other processors may reorder writes, other systems share memory differently) there
is one rank, and the BLAS library uses the cores by itself.

Everything is float32. Results differ from the reference in the last bits, and between batch sizes too, unless the room
was opened with `batch_invariant=True`: then every row goes through the kernel of a single one.
"""

import math
import os
import pickle
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from minifer.errors import UsageError
from minifer.kv_cache.store import KVStore, runs
from minifer.meter import Meter
from minifer.ops import counting
from minifer.ops.batch import Batch, Span
from minifer.ops.ranks import (
    Arena,
    Board,
    Meeting,
    Peer,
    SharedStore,
    StepAbandonedError,
    anonymous_file,
    asleep_flag,
    check_all,
    close_all,
    close_file,
    max_rows,
    number_of_ranks,
    padded,
    share,
)
from minifer.ops.reference import rope_frequencies

if TYPE_CHECKING:
    from minifer.device import Device
    from minifer.model.config import ModelConfig
    from minifer.model.weights import LayerWeights, Weights

TILE = 128
"""Queries that attend at a time in a prefill, and rows that SwiGLU takes at a time: both then stay in the L2 cache."""

SMALL_PRODUCT = 1_000_000
"""Largest rows * columns * depth that OpenBLAS multiplies without packing its operands first."""

MANY_ROWS = 24
"""From here on one large product is faster than many small ones."""

SHORT_RUN = 64
"""A sequence whose runs are shorter than this on average is gathered before it is read."""

ONE, HALF = np.float32(1), np.float32(0.5)

# --- who does what ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One rank's rows of one layer, and its heads. `qkv` holds whole heads: some of q, some of k, some of v."""

    qkv: np.ndarray
    out: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray
    qkv_bias: np.ndarray | None
    out_bias: np.ndarray | None
    head_norm: np.ndarray | None

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Shard":
        """The same with `function` applied to every array."""
        return Shard(**{name: None if a is None else function(a) for name, a in vars(self).items()})  # type: ignore[arg-type]


# --- the arithmetic of one rank ---------------------------------------------------------------------------------------


def linear(w: np.ndarray, x: np.ndarray, out: np.ndarray, row_by_row: bool = False) -> None:
    """`out [T, n] = x [T, k] @ w[n, k].T`, by the kernel that suits T.

    * one row: a matrix-vector product, which reads w at full speed;
    * 2 to 23 rows: OpenBLAS would copy w into packed panels on every call, at the price of 3 to 5 such products; in
      pieces of at most `SMALL_PRODUCT` it does not (1.2 to 2 times the price of one row instead);
    * more: one large product.
    """
    rows = x.shape[0]
    if rows <= 1 or row_by_row:  # none at all in a chunk of a prompt that is not its last
        for i in range(rows):
            np.dot(w, x[i], out=out[i])
    elif rows < MANY_ROWS:
        _linear_in_pieces(w, x, out)
    else:
        np.matmul(x, w.T, out=out)


def _linear_in_pieces(w: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    n, k = w.shape
    rows = x.shape[0]
    piece = piece_of(n, k, rows)
    whole = n - n % piece
    columns = np.ascontiguousarray(x.T)
    y = np.matmul(w[:whole].reshape(-1, piece, k), columns)  # [n / piece, piece, rows]
    out[:, :whole] = y.reshape(whole, rows).T
    if whole < n:
        out[:, whole:] = (w[whole:] @ columns).T


def piece_of(n: int, k: int, rows: int) -> int:
    """Rows of w per small product: as many as `SMALL_PRODUCT` allows, a divisor of n if one is near.

    >>> piece_of(1536, 576, 8), piece_of(480, 576, 2)
    (192, 480)
    """
    most = max(1, min(n, SMALL_PRODUCT // (k * rows)))
    return next((p for p in range(most, most // 2, -1) if n % p == 0), most)


def normed(x: np.ndarray, eps: float, row_by_row: bool = False) -> np.ndarray:
    """`x / rms(x)` by row; the gain is already in the next weight."""
    if len(x) == 1:
        row = x[0]
        return x * np.float32(1.0 / math.sqrt(float(row.dot(row)) / row.size + eps))
    if row_by_row and len(x) > 0:
        return np.concatenate([normed(x[i : i + 1], eps) for i in range(len(x))])
    return np.einsum("ij,i->ij", x, ONE / rms(x, eps)[:, 0])  # faster than a division by a column


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    """The root of the mean square over the last axis, kept as an axis of length 1."""
    mean = np.vecdot(x, x)
    mean /= np.float32(x.shape[-1])
    mean += np.float32(eps)
    return np.sqrt(mean, out=mean)[..., None]


def swiglu(gate_up: np.ndarray, out: np.ndarray) -> None:
    """`silu(gate) * up` from `[T, 2 f]` into `out [T, f]`, a tile of rows at a time.

    The gate comes halved (see `shard`): with g = gate / 2, silu(gate) is g * (1 + tanh(g)). That is two calls fewer
    than by way of exp, whose overflow would have to be silenced, and nothing overflows.
    """
    f, tile = out.shape[1], np.empty((min(TILE, len(out)), out.shape[1]), np.float32)
    for start in range(0, len(out), TILE):
        g, u, o = gate_up[start : start + TILE, :f], gate_up[start : start + TILE, f:], out[start : start + TILE]
        e = tile[: len(o)]  # rows side by side: other ranks' columns lie between those of `out`
        np.tanh(g, out=e)
        e += ONE
        e *= g
        np.multiply(e, u, out=o)


def rotate(heads: np.ndarray, turn: np.ndarray) -> None:
    """RoPE in place: `heads [T, n, D]`, pairs side by side, are complex numbers; `turn [T, 1, D/2]` their rotations."""
    z = heads.view(np.complex64)
    z *= turn


Pieces = list[tuple[int, int]]
"""Stretches of slots, `(first, after the last)`."""

Groups = list[tuple[int, slice]]
"""kv heads, each with the query heads that read it."""


@dataclass(frozen=True)
class Readers:
    """Query heads that one rank attends with, and the kv heads they read; `groups` counts both from the first here."""

    heads: slice
    kv_heads: slice
    groups: Groups


def readers_of(num_heads: int, num_kv_heads: int, heads: slice) -> Readers:
    """The heads of a share, by the kv head that they read.

    >>> readers_of(9, 3, slice(0, 5)).groups
    [(0, slice(0, 3, None)), (1, slice(3, 5, None))]
    """
    group, first, last = num_heads // num_kv_heads, heads.start, heads.stop
    low, high = first // group, -(-last // group)
    groups = [
        (kv - low, slice(max(first, kv * group) - first, min(last, (kv + 1) * group) - first))
        for kv in range(low, high)
    ]
    return Readers(heads, slice(low, high), groups)


@dataclass(frozen=True)
class Tile:
    """Some queries of one sequence: rows `start` to `stop` of the step, and the `pieces` of the cache that they read,
    `context` keys in all.

    `hidden [T, n]` is true where one of the T queries may not see one of the last n keys; None for a single query.
    `scattered` are the blocks of a sequence that must be gathered, and then `pieces` is a place in what is gathered.
    """

    start: int
    stop: int
    pieces: Pieces
    context: int
    hidden: np.ndarray | None
    scattered: np.ndarray | None


def tiles_of(span: Span, block_size: int, window: int, size: int, longest: int, together: bool) -> list[Tile]:
    """A sequence's queries in tiles of `size`, each with the keys from its first query's window to its last query.

    Pieces are at most `longest` keys, so that a product with one kv head's queries stays a small one. Blocks that lie
    scattered are gathered first: always if `together`, else where the runs are short.
    """
    first, found = span.context - span.length, []
    for start in range(0, span.length, size):
        length = min(size, span.length - start)
        low, high = max(0, first + start - window + 1), first + start + length
        pieces, scattered = _clip(runs(span.block_table, high, block_size), low), None
        if len(pieces) > 1 and (together or high - low < SHORT_RUN * len(pieces)):
            scattered = np.array(span.block_table[low // block_size : -(-high // block_size)])
            pieces = [(low % block_size, low % block_size + high - low)]
        pieces = [(a, min(a + longest, stop)) for begin, stop in pieces for a in range(begin, stop, longest)]
        rows, hidden = span.start + start, _hidden(length, high - low, window)
        found.append(Tile(rows, rows + length, pieces, high - low, hidden, scattered))
    return found


def _clip(pieces: list[tuple[int, int]], low: int) -> list[tuple[int, int]]:
    """The pieces without their first `low` slots.

    >>> _clip([(8, 16), (0, 4)], 9)
    [(1, 4)]
    """
    kept = []
    for a, b in pieces:
        if b - a > low:
            kept.append((a + low, b))
        low = max(0, low - (b - a))
    return kept


def _hidden(length: int, context: int, window: int) -> np.ndarray | None:
    """The mask of a tile whose last query is the last of `context` keys. Without a window that bites, only the tile's
    own keys can be hidden from it."""
    if length == 1:
        return None
    query = np.arange(context - length, context)[:, None]
    key = np.arange(context if context > window else length)[None, :]
    if context <= window:
        return key > query - (context - length)
    return (key > query) | (key <= query - window)


def stretches(slots: list[int]) -> list[tuple[slice, slice]]:
    """Rows whose slots are adjacent, together: pairs of (rows, slots).

    >>> stretches([4, 5, 6, 1])
    [(slice(0, 3, None), slice(4, 7, None)), (slice(3, 4, None), slice(1, 2, None))]
    """
    found, start = [], 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[i - 1] + 1:
            found.append((slice(start, i), slice(slots[start], slots[i - 1] + 1)))
            start = i
    return found


class Rank:
    """One process's part of the model: its shards, and the steps of a forward pass on them."""

    def __init__(
        self, config: "ModelConfig", ranks: int, rank: int, board: Board, meeting: Meeting, *, row_by_row: bool = False
    ) -> None:
        """Nothing is loaded yet; see `load`."""
        c = self.config = config
        self.board, self.meeting, self.row_by_row = board, meeting, row_by_row
        self.layers: list[Shard] = []
        self.top: Any = None  # the head's rows, once loaded
        heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
        self.hidden = share(c.hidden_size, ranks, rank)
        self.gated = share(c.intermediate_size, ranks, rank)
        self.vocab = share(c.vocab_size, ranks, rank)
        self.projected = share(heads + 2 * kv_heads, ranks, rank)  # the heads of q, k, v it computes
        # Nine heads on two ranks are five and four: in every other tile it takes the share of its opposite number.
        self.readers = [readers_of(heads, kv_heads, share(heads, ranks, r)) for r in (rank, ranks - 1 - rank)]

    def load(self, shards: Iterator[Shard], head: Callable[[], np.ndarray]) -> None:
        """Take over the weights: one shard for each layer, then the head."""
        c, first = self.config, next(shards)
        floats = sum(padded(a.size) for a in vars(first).values() if a is not None)
        arena = Arena(c.num_hidden_layers * floats + padded((self.vocab.stop - self.vocab.start) * c.hidden_size))
        for one in chain([first], shards):
            self.layers.append(one.map(arena.keep))
        self.top = arena.keep(head())

    def begin(self, batch: Batch, turn: np.ndarray, store: KVStore) -> None:
        """Take up a step: its layout, RoPE's rotations `[T, D/2]` as complex numbers, and the cache.

        Every layer works on the same views of the board, so they are made here.
        """
        c, size, rows, mine = self.config, 1 if self.row_by_row else TILE, len(turn), self.projected
        num_heads, window = c.num_attention_heads, c.window()
        longest = max(1, SMALL_PRODUCT // (num_heads // c.num_key_value_heads * c.head_dim))
        self.logit_rows, self.turn, self.store = batch.logit_rows, turn[:, None, :], store
        self.tiles = [
            t for span in batch.spans for t in tiles_of(span, store.block_size, window, size, longest, self.row_by_row)
        ]
        self.written = stretches(batch.slots.tolist())
        board, d = self.board, c.head_dim
        self.x, self.attended, self.gated_all = board.x[:rows], board.attended[:rows], board.gated[:rows]
        self.x_mine, self.gated_mine = self.x[:, self.hidden], self.gated_all[:, self.gated]
        self.qkv_mine = board.qkv[:rows, mine.start * d : mine.stop * d]
        heads = board.qkv[:rows].reshape(rows, -1, d)
        self.turned = heads[:, mine.start : min(mine.stop, num_heads + c.num_key_value_heads)]
        outputs = self.attended.reshape(rows, -1, d)
        self.sides = [(r, heads[:, r.heads], outputs[:, r.heads]) for r in self.readers[: len(self.tiles)]]
        self.new_k = self._new(heads, num_heads)
        self.new_v = self._new(heads, num_heads + c.num_key_value_heads)
        self.y = np.empty(self.x_mine.shape, np.float32)
        self.gate_up = np.empty((rows, 2 * self.gated_mine.shape[1]), np.float32)

    def _new(self, heads: np.ndarray, first: int) -> tuple[slice, np.ndarray] | None:
        """Which kv heads of the kind that begins at head `first` this rank computes, and where they stand; or None."""
        a, b = max(self.projected.start, first), min(self.projected.stop, first + self.config.num_key_value_heads)
        return (slice(a - first, b - first), heads[:, a:b]) if a < b else None

    def linear(self, w: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        """`linear` by this room's rule."""
        linear(w, x, out, self.row_by_row)

    def attention_block(self, index: int) -> None:
        """x += output projection of attention over norm(x); three meetings."""
        layer = self.layers[index]
        self._project(layer)
        self._write(index)
        self.meeting.meet()  # every head of q, and the cache, are complete
        self._attend(index)
        self.meeting.meet()  # so is the output of every head
        self.linear(layer.out, self.attended, self.y)
        if layer.out_bias is not None:
            self.y += layer.out_bias
        self.x_mine += self.y
        self.meeting.meet()

    def mlp_block(self, index: int) -> None:
        """x += gated feed-forward of norm(x); two meetings."""
        layer = self.layers[index]
        self.linear(layer.gate_up, normed(self.x, self.config.rms_norm_eps, self.row_by_row), self.gate_up)
        swiglu(self.gate_up, self.gated_mine)
        self.meeting.meet()
        self.linear(layer.down, self.gated_all, self.y)
        self.x_mine += self.y
        self.meeting.meet()

    def logits(self, count: int) -> None:
        """Logits of the rows that the batch asks for, into the board; one meeting."""
        h = normed(self.x[self.logit_rows], self.config.rms_norm_eps, self.row_by_row)
        self.linear(self.top, h, self.board.logits[:count, self.vocab])
        self.meeting.meet()

    def _project(self, layer: Shard) -> None:
        """This rank's heads of q, k and v; those of q and k normed (Qwen3) and rotated."""
        self.linear(layer.qkv, normed(self.x, self.config.rms_norm_eps, self.row_by_row), self.qkv_mine)
        if layer.qkv_bias is not None:
            self.qkv_mine += layer.qkv_bias
        if layer.head_norm is not None:
            self.turned /= rms(self.turned, self.config.rms_norm_eps)
            self.turned *= layer.head_norm[: self.turned.shape[1]]
        rotate(self.turned, self.turn)

    def _write(self, index: int) -> None:
        """The new keys and values that this rank computed go to their slots."""
        for rows, slots in self.written:
            if self.new_k is not None:
                heads, new = self.new_k
                self.store.k(index)[heads, :, slots] = new[rows].transpose(1, 2, 0)
            if self.new_v is not None:
                heads, new = self.new_v
                self.store.v(index)[heads, slots] = new[rows].transpose(1, 0, 2)

    def _attend(self, index: int) -> None:
        """This rank's query heads, tile by tile. The scale is already in q."""
        k, v = self.store.k(index), self.store.v(index)
        caches = [(k[readers.kv_heads], v[readers.kv_heads]) for readers, _, _ in self.sides]
        for number, tile in enumerate(self.tiles):
            readers, q, o = self.sides[number % 2]
            keys, values = caches[number % 2]
            if tile.scattered is not None:
                keys, values = gather(keys, values, tile.scattered, self.store.block_size)
            attend = attend_one if tile.hidden is None else attend_many
            attend(q[tile.start : tile.stop], keys, values, tile, readers.groups, o[tile.start : tile.stop])


def gather(k: np.ndarray, v: np.ndarray, blocks: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys `[K, D, n]` and values `[K, n, D]` of scattered blocks of `size` in one piece, from the whole cache.

    Copying once is cheaper than a tiny product for every block: a decode step of 8 sequences of 1,024 tokens in blocks
    of 16 takes 1.4 times as long as on a contiguous cache, not 2.5 times.
    """
    heads, d, _ = k.shape
    keys = np.take(k.reshape(heads, d, -1, size), blocks, axis=2)
    values = np.take(v.reshape(heads, -1, size * d), blocks, axis=1)
    return keys.reshape(heads, d, -1), values.reshape(heads, -1, d)


def attend_one(q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: Tile, groups: Groups, out: np.ndarray) -> None:
    """One query `[1, n, D]`, as in decode: all heads share one softmax, so that few calls are made."""
    q, out = q[0], out[0]
    scores = np.empty((len(q), tile.context), np.float32)
    for kv, h in groups:
        scores_into(q[h], k[kv], tile.pieces, scores[h])
    total = exponentials(scores)
    for kv, h in groups:
        weighted_sum_into(scores[h], v[kv], tile.pieces, out[h])
    out /= total


def attend_many(q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: Tile, groups: Groups, out: np.ndarray) -> None:
    """A tile of queries `[T, n, D]` of a prefill, kv head by kv head, so that the scores stay in the L2 cache."""
    length, _, d = q.shape
    assert tile.hidden is not None
    for kv, h in groups:
        rows = q[:, h].transpose(1, 0, 2).reshape(-1, d)
        scores = np.empty((len(rows), tile.context), np.float32)
        masked_scores_into(rows, k[kv], tile, scores)
        total = plain_exponentials(scores)
        if total is None:
            masked_scores_into(rows, k[kv], tile, scores)
            total = exponentials(scores)
        weighted_sum_into(scores, v[kv], tile.pieces, rows)
        rows /= total
        out[:, h] = rows.reshape(-1, length, d).transpose(1, 0, 2)


def scores_into(q: np.ndarray, k: np.ndarray, pieces: list[tuple[int, int]], scores: np.ndarray) -> None:
    """`scores [rows, S] = q [rows, D] @ k[D, slots]` over the pieces, one after the other."""
    at = 0
    for a, b in pieces:
        np.matmul(q, k[:, a:b], out=scores[:, at : at + b - a])
        at += b - a


def masked_scores_into(q: np.ndarray, k: np.ndarray, tile: Tile, scores: np.ndarray) -> None:
    """The scores of a tile, one query head of it after the other; what a query may not see is -inf."""
    assert tile.hidden is not None
    scores_into(q, k, tile.pieces, scores)
    length, last = tile.hidden.shape
    masked = scores.reshape(-1, length, tile.context)[:, :, tile.context - last :]
    np.copyto(masked, np.float32(-np.inf), where=tile.hidden)


PLAIN = 40.0
"""Scores within this of 0 can be raised to powers as they are, far from both ends of float32."""


def plain_exponentials(scores: np.ndarray) -> np.ndarray | None:
    """`exponentials` without a shift by each row's largest, where no row needs it; None if one did, and then `scores`
    is spent.

    Finding the largest of every row and taking it away takes NumPy longer than the exponential itself. The shift is
    there to keep the sums in range, and most scores are small: then it changes nothing but the last bits.
    """
    if not scores.max() < PLAIN:  # NaN, too
        return exponentials(scores)
    np.exp(scores, out=scores)
    total = scores @ np.ones((scores.shape[1], 1), np.float32)
    return total if total.min() > math.exp(-PLAIN) else None


def exponentials(scores: np.ndarray) -> np.ndarray:
    """`exp(score - largest)` in place, and the sums of the rows `[rows, 1]` by which the result must be divided."""
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    np.exp(scores, out=scores)
    return np.add.reduce(scores, axis=1, keepdims=True)


def weighted_sum_into(p: np.ndarray, v: np.ndarray, pieces: list[tuple[int, int]], out: np.ndarray) -> None:
    """`out [rows, D] = p [rows, S] @ v[slots, D]` over the pieces; nothing is gathered."""
    at = 0
    for a, b in pieces:
        part = p[:, at : at + b - a]
        if at == 0:
            np.matmul(part, v[a:b], out=out)
        else:
            out += np.matmul(part, v[a:b])
        at += b - a


# --- the room: rank 0 here, the others as processes -------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What stands for a layer outside: its number, and its tensors as empty shapes for counting."""

    index: int
    shapes: "LayerWeights"


@dataclass(frozen=True)
class Prepared:
    """The weights as this room has them: `embedding [V, E]` as it was, everything else in the ranks."""

    embedding: np.ndarray
    layers: tuple[Layer, ...]
    head: np.ndarray
    final_norm: np.ndarray


class Ops:
    """The room. `threads` ranks work on a step (None: one per core); see the module's docstring.

    `batch_invariant=True` gives every row the same kernel, however many rows there are: answers are then the same bits
    alone and in company. The price, measured on SmolLM2-135M: a prompt of 512 takes 5.7 times as long, a batch of 8
    2.0 times, a single sequence the same.
    """

    name = "cpu"

    def __init__(
        self,
        config: "ModelConfig",
        device: "Device",
        meter: Meter | None = None,
        *,
        threads: int | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """Start the other ranks; they wait for their weights."""
        self.config, self.device, self.meter = config, device, meter
        self.num_ranks = number_of_ranks(threads, config)
        file = anonymous_file()
        self._board = Board(file, config, self.num_ranks)
        self._frequencies = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        common = (file, __name__, batch_invariant, self._frequencies)
        self._peers = [Peer(config, self.num_ranks, rank, *common) for rank in range(1, self.num_ranks)]
        close_file(file)
        # subtle: a method of this object as callback would be a cycle, and the ranks would outlive the room.
        meeting = Meeting(self._board.flags, self.num_ranks, 0, partial(check_all, self._peers))
        self._rank = Rank(config, self.num_ranks, 0, self._board, meeting, row_by_row=batch_invariant)
        # With ranks of its own the room wants one BLAS thread in this process; close() gives the others back.
        self._limits = threadpool_limits(1, "blas") if self._peers or threads == 1 else None
        self._step = 0
        self._finalizer = weakref.finalize(self, close_all, self._peers, self._limits)

    def prepare(self, weights: "Weights") -> Prepared:
        """Cut the weights into shards, fold into them what can be folded, and hand every rank its own."""
        tops = [weights.head[share(len(weights.head), self.num_ranks, r)] for r in range(self.num_ranks)]
        for peer, top in zip(self._peers, tops[1:], strict=True):
            shards = (shard(self.config, layer, self.num_ranks, peer.rank) for layer in weights.layers)
            peer.send_weights(shards, top * weights.final_norm)
        mine = (shard(self.config, layer, self.num_ranks, 0) for layer in weights.layers)
        self._rank.load(mine, lambda: tops[0] * weights.final_norm)
        shapes = weights.map(lambda a: np.broadcast_to(np.float32(0), a.shape))
        layers = tuple(Layer(i, layer) for i, layer in enumerate(shapes.layers))
        return Prepared(weights.embedding, layers, shapes.head, shapes.final_norm)

    def new_store(self, num_blocks: int, block_size: int, *, poison: bool = False) -> KVStore:
        """A KV cache in memory that all ranks see."""
        c = self.config
        sizes = (c.num_hidden_layers, c.num_key_value_heads, c.head_dim, num_blocks, block_size)
        store = SharedStore(*sizes, poison=poison)
        for peer in self._peers:
            peer.send_store(store, sizes)
        return store

    def close(self) -> None:
        """End the other ranks and give the BLAS library its threads back."""
        self._finalizer()

    def embed(self, embedding: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Rows of `embedding [V, E]` for `tokens [T]`: `[T, E]`. Raises UsageError for more than `MAX_ROWS`."""
        if len(tokens) > max_rows(self.config):
            raise UsageError(f"a step of {len(tokens)} tokens exceeds this room's {max_rows(self.config)}")
        counting.embed(self.meter, tokens, embedding)
        return embedding[tokens]

    def rope_table(self, positions: np.ndarray) -> np.ndarray:
        """The rotations of a step's tokens as complex numbers, `[T, D/2]`."""
        return turns(positions, self._frequencies)

    def attention_block(
        self, x: np.ndarray, layer: Layer, rope_table: np.ndarray, batch: Batch, store: KVStore, index: int
    ) -> np.ndarray:
        """As in the reference. The first layer's call sets all ranks going on this step."""
        if index == 0:
            self._begin(x, rope_table, batch, store)
        self._rank.attention_block(index)
        if self.meter is not None:
            self._count_attention(layer.shapes, batch)
        return self._board.x[: len(x)]

    def mlp_block(self, x: np.ndarray, layer: Layer) -> np.ndarray:
        """As in the reference."""
        self._rank.mlp_block(layer.index)
        if self.meter is not None:
            s, rows = layer.shapes, len(x)
            counting.norm(self.meter, x, s.mlp_norm)
            counting.linear(self.meter, "gate_up", x, s.w_gate, s.w_up)
            counting.swiglu(self.meter, _like(rows, len(s.w_gate)))
            counting.linear(self.meter, "down", _like(rows, len(s.w_gate)), s.w_down)
        return x

    def head(self, x: np.ndarray, weights: Prepared, rows: np.ndarray) -> np.ndarray:
        """As in the reference; the logits are this room's buffer."""
        self._rank.logits(len(rows))
        if self.meter is not None:
            h = _like(len(rows), x.shape[1])
            counting.norm(self.meter, h, weights.final_norm)
            counting.linear(self.meter, "head", h, weights.head)
        return self._board.logits[: len(rows)]

    def _begin(self, x: np.ndarray, turn: np.ndarray, batch: Batch, store: KVStore) -> None:
        """Announce a step. Nobody writes to the board for an older one after the first meeting; after the second,
        its description and x are there."""
        board, meeting = self._board, self._rank.meeting
        self._step += 1
        meeting.begin(self._step)
        board.flags[0] = self._step
        for peer in self._peers:
            peer.wake(board.flags)
        meeting.meet()
        board.x[: len(x)] = x
        if self._peers:
            board.describe(batch, store.identity if isinstance(store, SharedStore) else -1)
        meeting.meet()
        self._rank.begin(batch, turn, store)

    def _count_attention(self, s: "LayerWeights", batch: Batch) -> None:
        c, rows = self.config, batch.num_tokens
        x, q = _like(rows, c.hidden_size), _like(rows, c.num_attention_heads, c.head_dim)
        k = _like(rows, c.num_key_value_heads, c.head_dim)
        counting.norm(self.meter, x, s.attention_norm)
        counting.linear(self.meter, "qkv", x, s.wq, s.wk, s.wv, s.bq, s.bk, s.bv)
        if s.q_norm is not None:
            counting.norm(self.meter, q, s.q_norm)
            counting.norm(self.meter, k, s.k_norm)
        counting.rope(self.meter, q, k)
        counting.kv_write(self.meter, k, k)
        for span in batch.spans:
            q_span, keys = q[: span.length], _like(c.num_key_value_heads, c.head_dim, span.context)
            counting.attention(self.meter, q_span, keys, span.context, c.window())
        counting.linear(self.meter, "output", q.reshape(rows, -1), s.wo, s.bo)


def turns(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """RoPE's rotations `exp(i * position * frequency)`: `[T, D/2]` complex64, computed in float64."""
    return np.exp(1j * (positions[:, None] * frequencies[None, :])).astype(np.complex64)


def _like(*shape: int) -> np.ndarray:
    """An array of this shape and no memory, for counting."""
    return np.broadcast_to(np.float32(0), shape)


def shard(config: "ModelConfig", layer: "LayerWeights", ranks: int, rank: int) -> Shard:
    """One rank's rows of a layer, with everything folded in that can be.

    The gain of a norm goes into the columns of the weights behind it, 1/sqrt(D) into q (into q's own norm where there
    is one), the half of SwiGLU into the gate; q and k get their pairs of RoPE side by side.
    """
    c, d = config, config.head_dim
    scale = np.float32(d**-0.5)
    q_scale, norm_scale = (np.float32(1), scale) if c.qk_norm else (scale, np.float32(1))
    mine = share(c.num_attention_heads + 2 * c.num_key_value_heads, ranks, rank)
    rows = slice(mine.start * d, mine.stop * d)
    qkv = np.concatenate([_pairs(layer.wq, d) * q_scale, _pairs(layer.wk, d), layer.wv])[rows]
    bias = norm = None
    if layer.bq is not None:
        bias = np.concatenate([_pairs(layer.bq, d) * q_scale, _pairs(layer.bk, d), layer.bv])[rows]
    if layer.q_norm is not None:
        q_gain, k_gain = _pairs(layer.q_norm, d) * norm_scale, _pairs(layer.k_norm, d)
        norm = np.stack([q_gain] * c.num_attention_heads + [k_gain] * c.num_key_value_heads)[mine]
    f, e = share(c.intermediate_size, ranks, rank), share(c.hidden_size, ranks, rank)
    gain = layer.mlp_norm
    return Shard(
        qkv * layer.attention_norm,
        layer.wo[e],
        np.concatenate([layer.w_gate[f] * (HALF * gain), layer.w_up[f] * gain]),
        layer.w_down[e],
        bias,
        None if layer.bo is None else layer.bo[e],
        norm,
    )


def _pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k with each head's pairs (i, i + D/2) moved next to each other. Scores do not notice."""
    split = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


SPIN_S = 0.004
"""How long an idle rank watches for the next step before it goes to sleep."""

# --- the other ranks' program -----------------------------------------------------------------------------------------


class Worker:
    """A rank in a process of its own: waits for a step, does its part, waits again."""

    def __init__(self, board: int, sock: socket.socket) -> None:
        """Receive what kind of model this is, then the weights."""
        self._socket = sock
        self._parent = os.getppid()
        config, ranks, rank, row_by_row, self._frequencies = self._next()
        self._board = Board(board, config, ranks)
        self._asleep = asleep_flag(rank)
        meeting = Meeting(self._board.flags, ranks, rank, self._check_parent)
        self._rank = Rank(config, ranks, rank, self._board, meeting, row_by_row=row_by_row)
        self._stores: dict[int, KVStore] = {}

    def load(self) -> None:
        """Receive the weights."""
        self._rank.load((self._next() for _ in range(self._rank.config.num_hidden_layers)), self._next)

    @staticmethod
    def _next() -> Any:
        try:
            return pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # the room was closed before it had handed over its weights
            sys.exit(0)

    def serve(self) -> None:
        """Take part in every step until the parent hangs up."""
        seen = 0
        while True:
            seen = self._await_step(seen)
            try:
                self._take_part(seen)
            except StepAbandonedError:
                continue

    def _take_part(self, step: int) -> None:
        rank = self._rank
        rank.meeting.begin(step)
        rank.meeting.meet()
        rank.meeting.meet()
        store_id, batch = self._board.read()
        while store_id not in self._stores:
            self._receive()
        rank.begin(batch, turns(batch.positions, self._frequencies), self._stores[store_id])
        for index in range(rank.config.num_hidden_layers):
            rank.attention_block(index)
            rank.mlp_block(index)
        rank.logits(len(batch.logit_rows))

    def _await_step(self, seen: int) -> int:
        flags = self._board.flags
        until = time.perf_counter() + SPIN_S
        while flags[0] == seen:
            if time.perf_counter() > until:
                self._sleep(seen)
        return flags[0]

    def _sleep(self, seen: int) -> None:
        """Wait for a message; look up now and then, in case the parent did not see that we lay down."""
        flags = self._board.flags
        flags[self._asleep] = 1
        while flags[0] == seen:
            if select.select([self._socket], [], [], 0.05)[0]:
                self._receive()
        flags[self._asleep] = 0

    def _receive(self) -> None:
        data, files, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
        if not data:
            sys.exit(0)
        kind, *rest = pickle.loads(data)
        if kind == "store":
            identity, sizes = rest
            self._stores[identity] = SharedStore(*sizes, file=files[0], identity=identity)
        elif kind == "drop":
            self._stores.pop(rest[0], None)

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            sys.exit(0)


def main() -> None:
    """The program of a rank other than the first: `python -m minifer.ops.cpu BOARD_FILE SOCKET`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    worker = Worker(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
    worker.load()
    worker.serve()


if __name__ == "__main__":
    main()

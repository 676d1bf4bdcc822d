"""The GPU room: the same operations as `reference.py`, as CUDA kernels launched through CuPy.

A GPU reads a small model's weights in a tenth of a millisecond and takes 5 microseconds to be told to. So two things
decide how fast a step is, and each has its own answer.

**Many tokens** (a prefill): products of large matrices, which cuBLAS does on tensor cores. They are written `x @ w.T`
with two dimensions, because only then does CuPy hand 16-bit numbers to cuBLAS without a copy in float32. Attention is
one kernel that reads the paged cache through the block table (`flash_prefill`).

**Few tokens** (a decode step): every weight is read once and used a few times, so kernels of our own read it at full
speed (`skinny_gemm`) and do on the way what would otherwise be a launch of its own: adding the residual, a bias, the
norm of the heads, the write to the cache. A layer is 10 launches; `cuda_decode.py` records a step's launches once and
replays them as one.

Weights, activations and cache have the dtype the room was opened with; sums, norms, softmax, logits and the residual
stream are float32. The room equals the reference within the rounding of that dtype, and is itself the same from step to
step, but not between batch sizes: few and many rows go through different kernels.

Not here: the kernels (`kernels/*.cu`), their launch (`cuda_launch.py`), memory (`cuda_memory.py`), more than one GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minifer.errors import DeviceError, InvariantError, UsageError
from minifer.meter import Meter
from minifer.ops import counting
from minifer.ops.batch import Batch, Span
from minifer.ops.cuda_decode import Decoder, LooseSampler
from minifer.ops.cuda_launch import Kernels, act_dtype
from minifer.ops.cuda_memory import Arena, DeviceStore, Spans, Step, check_memory, need_of, padded
from minifer.ops.reference import rope_frequencies, rope_table

if TYPE_CHECKING:
    from minifer.device import Device
    from minifer.limits import EngineConfig
    from minifer.model.config import ModelConfig
    from minifer.model.weights import LayerWeights, Weights

FEW_ROWS = 8
"""Up to here a product is our kernel's, beyond it cuBLAS's."""

WARPS = 4
"""Warps in the block of a skinny product, and so outputs that a block computes."""

MOST_SPLITS, SHORTEST_STRETCH = 64, 32
"""Into how many stretches a context is cut at most, and how short they may get (as in `paged_split.cu`)."""

OLDEST = {"float32": 70, "float16": 70, "bfloat16": 80}
"""Compute capabilities, times ten, from which on a dtype's kernels compile: Volta, and Ampere for bfloat16."""


@dataclass(frozen=True)
class Layer:
    """A block's weights on the device. `qkv` stacks the rows of q, k and v, `gate_up` those of gate and up."""

    attention_norm: Any
    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    out: Any
    out_bias: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class Prepared:
    """The model on the device, in the shape that `transformer.forward` walks."""

    embedding: Any
    layers: tuple[Layer, ...]
    final_norm: Any
    head: Any


class Residual(NamedTuple):
    """The residual stream `total [T, E]` (float32) and what the next norm is still to add to it: cuBLAS cannot add its
    result to float32, and a launch of its own would read everything once more."""

    total: Any
    pending: Any = None
    bias: Any = None


class Ops:
    """The GPU room. Also at home on the device `strict`, where CuPy and the kernels are stand-ins on the CPU.

    `dtype` is `float16`, `bfloat16` or `float32`; with `graphs=False` decode steps launch their kernels one by one.
    Raises DeviceError for a GPU too old for the dtype or kernels that do not compile, and the errors of
    `cuda_launch.kernel_source`.
    """

    name = "cuda"

    def __init__(
        self,
        config: "ModelConfig",
        device: "Device",
        meter: Meter | None = None,
        *,
        dtype: str = "float32",
        graphs: bool = True,
    ) -> None:
        """Compile the kernels; no memory is taken yet."""
        self.config, self.device, self.meter, self.dtype = config, device, meter, act_dtype(dtype)
        self._xp, self._dtype_name, self._graphs = device.xp, dtype, graphs
        gpu = self._xp.cuda.Device()
        if int(gpu.compute_capability) < OLDEST[dtype]:
            raise DeviceError(
                f"{device.name} has compute capability {_version(int(gpu.compute_capability))}, and {dtype} needs "
                f"{_version(OLDEST[dtype])}: use another --dtype, or --device cpu"
            )
        _check_dtype(self._xp, self.dtype)
        self._processors = int(gpu.attributes["MultiProcessorCount"])
        self.kernels = Kernels(
            self._xp, dtype, config.head_dim, config.num_attention_heads // config.num_key_value_heads
        )
        self._arena = Arena(config, self._xp, self.dtype)
        self._parts: dict[str, Any] = {}
        self._rope: tuple[Any, Any] | None = None
        self._step: Step | None = None
        self._decoder: Decoder | None = None
        self._sampler: LooseSampler | None = None
        self._widest_table = 0

    # --- loading ------------------------------------------------------------------------------------------------------

    def reserve(self, parameters: int, limits: "EngineConfig") -> None:
        """Check that `parameters` weights and an engine of these limits fit, before anything is loaded, and take the
        buffers of a step. Raises DeviceError with all numbers."""
        rows, seats = limits.max_num_batched_tokens, limits.max_num_seqs
        slots = limits.num_blocks * limits.block_size
        need = need_of(self.config, parameters, slots, rows, seats, self.dtype.itemsize)
        check_memory(self.device, need, self._dtype_name, limits.num_blocks, limits.block_size, rows)
        self._arena.reserve(rows, seats)
        self._widest_table = -(-(limits.max_model_len or limits.capacity) // limits.block_size)

    def prepare(self, weights: "Weights") -> Prepared:
        """The weights on the device, copied tensor by tensor."""
        embedding = self._upload(weights.embedding)
        layers = tuple(self._layer(layer) for layer in weights.layers)
        head = embedding if weights.head is weights.embedding else self._upload(weights.head)
        prepared = Prepared(embedding, layers, self._upload(weights.final_norm), head)
        self._xp.get_default_pinned_memory_pool().free_all_blocks()  # the copies' page-locked host memory
        return prepared

    def _layer(self, w: "LayerWeights") -> Layer:
        up = self._upload
        return Layer(
            up(w.attention_norm), up(w.wq, w.wk, w.wv), up(w.bq, w.bk, w.bv), up(w.q_norm), up(w.k_norm),
            up(w.wo), up(w.bo), up(w.mlp_norm), up(w.w_gate, w.w_up), up(w.w_down),
        )  # fmt: skip

    def _upload(self, *parts: Any) -> Any:
        """Parts stacked along their rows, as one array on the device; None for absent ones."""
        if parts[0] is None:
            return None
        whole = self._xp.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), dtype=self.dtype)
        start = 0
        for part in parts:
            whole[start : start + len(part)].set(np.ascontiguousarray(part, dtype=self.dtype))
            start += len(part)
        return whole

    def new_store(self, num_blocks: int, block_size: int, *, poison: bool = False) -> DeviceStore:
        """A paged KV cache on the device, and the rotations of as many positions as it has room for."""
        store = DeviceStore(self.config, num_blocks, block_size, xp=self._xp, dtype=self.dtype, poison=poison)
        longest = min(store.num_slots, self.config.max_position_embeddings)
        if self._rope is None or len(self._rope[0]) < longest:
            c = self.config
            frequencies = rope_frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
            cos, sin = rope_table(np.arange(longest), frequencies)
            self._rope = (self._xp.asarray(cos), self._xp.asarray(sin))
            self._decoder = None  # its graphs have the old tables' addresses
        return store

    def close(self) -> None:
        """Give the device memory back: buffers, graphs and tables; weights and cache go with their owners."""
        self._decoder = self._sampler = self._step = self._rope = None
        self._parts.clear()
        self._arena = Arena(self.config, self._xp, self.dtype)
        self._xp.get_default_memory_pool().free_all_blocks()

    # --- the ops of `transformer.forward` -----------------------------------------------------------------------------

    def embed(self, embedding: Any, tokens: Any) -> Residual:
        """As in the reference; x is a `Residual` from here to `head`."""
        counting.embed(self.meter, tokens, embedding)
        return self._embed(embedding, self._xp.asarray(tokens).astype(np.int32), len(tokens))

    def rope_table(self, positions: Any) -> Any:
        """The positions as the kernels want them: their rotations are in a table already."""
        return self._xp.asarray(positions).astype(np.int32)

    def attention_block(
        self, x: Residual, layer: Layer, rope_table: Any, batch: Batch, store: DeviceStore, index: int
    ) -> Residual:
        """As in the reference. The first layer's call brings block tables and slots to the device."""
        if index == 0:
            self._step = self._arranged(batch, rope_table, store)
        assert self._step is not None
        self._count_attention(layer, batch.num_tokens, batch.spans)
        return self._attention(x, layer, self._step, store, index)

    def mlp_block(self, x: Residual, layer: Layer) -> Residual:
        """As in the reference."""
        assert self._step is not None
        self._count_mlp(layer, self._step.tokens)
        return self._mlp(x, layer, self._step)

    def head(self, x: Residual, weights: Prepared, rows: Any) -> Any:
        """As in the reference: logits `[R, V]` in float32, in the room's own buffer."""
        self._count_head(weights, len(rows))
        return self._logits(x, weights, self._xp.asarray(rows).astype(np.int32), len(rows))

    # --- what an executor may use instead -----------------------------------------------------------------------------

    def decode(self, weights: Prepared, seqs: Sequence[Any], store: DeviceStore, draws: Sequence[Any]) -> Any:
        """A whole decode step, tokens drawn on the device: `(token, logprob)` per sequence, token -1 where no logits
        are usable. None if this is no such step, or one that only the host can sample (see `Decoder.takes`).

        `seqs` are the plan's sequences, `draws` a `(SamplingParams, seed, position)` for each.
        """
        if not Decoder.takes(seqs, draws):
            return None
        if self._decoder is None or self._decoder.store is not store or self._decoder.weights is not weights:
            width = self._widest_table or store.num_blocks
            self._decoder = Decoder(self, weights, store, width, graphs=self._graphs)
        if any(len(seq.block_table) > self._decoder.width for seq in seqs):
            return None
        if self.meter is not None:
            self._count_step(weights, [Span(i, 1, seq.context, ()) for i, seq in enumerate(seqs)])
        try:
            return self._decoder.step(seqs, draws)
        except BaseException:
            self._decoder = None  # what its arrays hold is not known any more
            raise

    def sample(self, logits: Any, draws: Sequence[Any]) -> Any:
        """Tokens drawn on the device from `logits [R, V]`: as for `decode`. None if only the host can."""
        if not Decoder.draws_on_device(draws):
            return None
        if self._sampler is None:
            self._sampler = LooseSampler(self.kernels, self._xp)
        return self._sampler.sample(logits, draws)

    def decode_logits(self, weights: Prepared, tokens: Any, step: Step, store: DeviceStore) -> Any:
        """The launches of a decode step up to its logits, and nothing else: no transfer, no allocation."""
        x = self._embed(weights.embedding, tokens, step.tokens)
        for index, layer in enumerate(weights.layers):
            x = self._attention(x, layer, step, store, index)
            x = self._mlp(x, layer, step)
        return self._logits(x, weights, None, step.tokens)

    def warm_buffers(self, rows: int) -> None:
        """Take the buffers of a decode step of `rows` rows, so that it allocates nothing."""
        self._arena.reserve(rows, rows)
        self._partials(rows)

    @property
    def generation(self) -> int:
        """Changes whenever a buffer has moved."""
        return self._arena.generation

    # --- the launches -------------------------------------------------------------------------------------------------

    def _embed(self, embedding: Any, tokens: Any, count: int) -> Residual:
        total = self._arena.rows("stream", count)
        self.kernels(
            "embed", (count,), _threads(self.config.hidden_size), embedding, tokens, total, self.config.hidden_size
        )
        return Residual(total)

    def _attention(self, x: Residual, layer: Layer, step: Step, store: DeviceStore, index: int) -> Residual:
        c, (cos, sin) = self.config, self._rope or (None, None)
        k, v = store.layer(index)
        qkv = self._product(self._normed(x, layer.attention_norm, step), layer.qkv, "qkv", step)
        q = self._arena.rows("q", step.rows)
        self.kernels(
            "rope_kv_write", (step.tokens, c.num_attention_heads + 2 * c.num_key_value_heads), 32,
            qkv, layer.qkv_bias, layer.q_norm, layer.k_norm, cos, sin, step.positions, step.slots, q, k, v,
            c.num_attention_heads, c.num_key_value_heads, c.rms_norm_eps,
        )  # fmt: skip
        attended = self._arena.rows("attended", step.rows)
        if step.decoding is not None:
            self._attend_decoding(q, k, v, step.decoding, attended, store.block_size)
        if step.prefilling is not None:
            self._attend_prefilling(q, k, v, step.prefilling, attended, store.block_size)
        return self._added(x.total, attended, layer.out, layer.out_bias, step)

    def _attend_decoding(self, q: Any, k: Any, v: Any, spans: Spans, out: Any, block_size: int) -> None:
        c, count = self.config, len(spans.lengths)
        splits, stats, partial = self._partials(count)
        self.kernels(
            "paged_split", (count, c.num_key_value_heads, splits), 128, q, k, v, spans.starts, spans.lengths,
            spans.tables, stats, partial, c.num_key_value_heads, block_size, spans.tables.shape[1], c.window(),
            c.head_dim**-0.5,
        )  # fmt: skip
        heads = c.num_attention_heads
        self.kernels("paged_combine", (count, heads), 32, stats, partial, spans.starts, out, heads, splits)

    def _attend_prefilling(self, q: Any, k: Any, v: Any, spans: Spans, out: Any, block_size: int) -> None:
        c, group = self.config, self.config.num_attention_heads // self.config.num_key_value_heads
        tile_rows = 32 if c.head_dim <= 64 else 16  # as in flash_prefill.cu
        tiles = -(-spans.longest * group // tile_rows)
        self.kernels(
            "flash_prefill", (tiles, c.num_key_value_heads, len(spans.lengths)), 128, q, k, v, spans.starts,
            spans.counts, spans.lengths, spans.tables, out, c.num_key_value_heads, block_size, spans.tables.shape[1],
            c.window(), c.head_dim**-0.5,
        )  # fmt: skip

    def _mlp(self, x: Residual, layer: Layer, step: Step) -> Residual:
        width = self.config.intermediate_size
        gate_up = self._product(self._normed(x, layer.mlp_norm, step), layer.gate_up, "gate_up", step)
        gated = self._arena.rows("gated", step.rows)
        threads = _threads(width)
        self.kernels("swiglu", (-(-width // threads), step.tokens), threads, gate_up, gated, width)
        return self._added(x.total, gated, layer.down, None, step)

    def _logits(self, x: Residual, weights: Prepared, rows: Any, count: int) -> Any:
        if count == 0:  # chunks of prompts only
            return self._arena.rows("logits", 0)
        c, space = self.config, _rows_for(count)
        normed, logits = self._arena.rows("normed", space), self._arena.rows("logits", space)
        gain, width = weights.final_norm, c.hidden_size
        self.kernels("rms_norm", (count,), _threads(width), *x, rows, gain, normed, width, c.rms_norm_eps)
        self._skinny("wide_", normed, weights.head, None, None, logits)
        return logits[:count]

    def _normed(self, x: Residual, gain: Any, step: Step) -> Any:
        c, out = self.config, self._arena.rows("normed", step.rows)
        threads = _threads(c.hidden_size)
        self.kernels("rms_norm", (step.tokens,), threads, *x, None, gain, out, c.hidden_size, c.rms_norm_eps)
        return out

    def _product(self, x: Any, weight: Any, name: str, step: Step) -> Any:
        """`x @ weight.T`, in the buffer called `name` or in a new array."""
        if not step.own_products:
            return x @ weight.T
        out = self._arena.rows(name, step.rows)
        self._skinny("", x, weight, out)
        return out

    def _added(self, total: Any, x: Any, weight: Any, bias: Any, step: Step) -> Residual:
        """The stream plus `x @ weight.T + bias`."""
        if not step.own_products:
            return Residual(total, x @ weight.T, bias)
        wide = self._arena.rows("stream", step.rows)  # the same buffer, with the rows that only pad it
        self._skinny("wide_", x, weight, bias, wide, wide)
        return Residual(total)

    def _skinny(self, kind: str, x: Any, weight: Any, *rest: Any) -> None:
        at_once = min(len(x), FEW_ROWS)
        outputs, inputs = weight.shape
        grid = (len(x) // at_once, -(-outputs // WARPS))
        self.kernels(f"skinny_gemm_{kind}b{at_once}", grid, 32 * WARPS, x, weight, *rest, outputs, inputs)

    # --- what a step needs on the device ------------------------------------------------------------------------------

    def _arranged(self, batch: Batch, positions: Any, store: DeviceStore) -> Step:
        """Slots and block tables of a batch, sequences with one new token apart from those with many."""
        self._check_length(max(span.context for span in batch.spans))
        tokens = batch.num_tokens
        few = tokens <= FEW_ROWS
        one = [span for span in batch.spans if span.length == 1]
        many = [span for span in batch.spans if span.length > 1]
        rows = _rows_for(tokens) if few else tokens
        slots = self._xp.asarray(batch.slots).astype(np.int32)
        return Step(tokens, rows, positions, slots, self._spans(one, store), self._spans(many, store), few)

    def _check_length(self, length: int) -> None:
        known = 0 if self._rope is None else len(self._rope[0])
        if length > known:
            raise UsageError(f"a sequence of {length} tokens exceeds the {known} positions of model and cache")

    def _spans(self, spans: list[Span], store: DeviceStore) -> Spans | None:
        if not spans:
            return None
        used = [-(-span.context // store.block_size) for span in spans]
        tables = np.zeros((len(spans), max(used)), dtype=np.int32)
        for row, span, blocks in zip(tables, spans, used, strict=True):
            row[:blocks] = span.block_table[:blocks]
        if tables.max() >= store.num_blocks:
            raise InvariantError(f"block {tables.max()} is read from a cache of {store.num_blocks} blocks")
        numbers = np.array([[s.start, s.length, s.context] for s in spans], dtype=np.int32).T
        starts, counts, lengths = (self._xp.asarray(np.ascontiguousarray(n)) for n in numbers)
        return Spans(starts, counts, lengths, self._xp.asarray(tables), max(span.length for span in spans))

    def _partials(self, count: int) -> tuple[int, Any, Any]:
        """Into how many stretches to cut contexts of `count` sequences (enough blocks for two on every multiprocessor),
        and where paged_split leaves their results."""
        c = self.config
        blocks = count * c.num_key_value_heads
        room = 1 if self._rope is None else -(-len(self._rope[0]) // SHORTEST_STRETCH)
        splits = max(1, min(MOST_SPLITS, room, 2 * self._processors // blocks))
        shape = (count, c.num_attention_heads, splits)
        key = f"{shape}"
        if key not in self._parts:
            take = self._xp.zeros
            self._parts[key] = take((*shape, 2), dtype=np.float32), take((*shape, c.head_dim), dtype=np.float32)
        return (splits, *self._parts[key])

    # --- counting -----------------------------------------------------------------------------------------------------

    def _like(self, *shape: int) -> np.ndarray:
        """An array of this shape and the room's dtype, and no memory, for counting."""
        return np.broadcast_to(np.zeros((), dtype=self.dtype), shape)

    def _count_attention(self, layer: Layer, rows: int, spans: Sequence[Span]) -> None:
        if self.meter is None:
            return
        c, meter = self.config, self.meter
        x, q = self._like(rows, c.hidden_size), self._like(rows, c.num_attention_heads, c.head_dim)
        k = self._like(rows, c.num_key_value_heads, c.head_dim)
        counting.norm(meter, x, layer.attention_norm)
        counting.linear(meter, "qkv", x, layer.qkv, layer.qkv_bias)
        if layer.q_norm is not None:
            counting.norm(meter, q, layer.q_norm)
            counting.norm(meter, k, layer.k_norm)
        counting.rope(meter, q, k)
        counting.kv_write(meter, k, k)
        for span in spans:
            keys = self._like(c.num_key_value_heads, c.head_dim, span.context)
            counting.attention(meter, q[: span.length], keys, span.context, c.window())
        counting.linear(meter, "output", q.reshape(rows, -1), layer.out, layer.out_bias)

    def _count_mlp(self, layer: Layer, rows: int) -> None:
        if self.meter is None:
            return
        x, gated = self._like(rows, self.config.hidden_size), self._like(rows, self.config.intermediate_size)
        counting.norm(self.meter, x, layer.mlp_norm)
        counting.linear(self.meter, "gate_up", x, layer.gate_up)
        counting.swiglu(self.meter, gated)
        counting.linear(self.meter, "down", gated, layer.down)

    def _count_head(self, weights: Prepared, rows: int) -> None:
        if self.meter is not None:
            h = self._like(rows, self.config.hidden_size)
            counting.norm(self.meter, h, weights.final_norm)
            counting.linear(self.meter, "head", h, weights.head)

    def _count_step(self, weights: Prepared, spans: Sequence[Span]) -> None:
        counting.embed(self.meter, spans, weights.embedding)
        for layer in weights.layers:
            self._count_attention(layer, len(spans), spans)
            self._count_mlp(layer, len(spans))
        self._count_head(weights, len(spans))


def _rows_for(count: int) -> int:
    """Rows that a skinny product computes for `count` wanted ones: a power of two up to 8, then a multiple of 8.

    >>> [_rows_for(n) for n in (1, 3, 8, 9)]
    [1, 4, 8, 16]
    """
    return 1 << (count - 1).bit_length() if count <= FEW_ROWS else padded(count)


def _check_dtype(xp: Any, dtype: np.dtype) -> None:
    try:
        xp.zeros(1, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise DeviceError(f"this CuPy has no {dtype}: use CuPy 14 or later, or --dtype float16") from error


def _threads(width: int) -> int:
    """Threads for a row of `width` numbers: whole warps, at most eight.

    >>> _threads(24), _threads(100), _threads(2048)
    (32, 128, 256)
    """
    return min(256, -(-width // 32) * 32)


def _version(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"

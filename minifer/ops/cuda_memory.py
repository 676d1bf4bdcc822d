"""The GPU room's memory: what it needs, counted before anything is taken, and what lives in it.

Device memory is small, and taking it is slow and makes the host wait. So everything is taken once: the weights, tensor
by tensor; the KV cache; and one buffer for each intermediate result of a step. Whether that fits is known before the
first byte is copied, and if it doesn't, the error names every number.

The cache lies as `[slots, kv heads, D]` per layer: the kernels read a token's key for one head, D adjacent numbers, so
there is nothing to gain from the CPU room's transposed keys, and a block is one contiguous piece.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minifer.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from minifer.device import Device
    from minifer.model.config import ModelConfig

ROW_STEP = 8
"""Buffers have a multiple of this many rows: the kernels for few rows compute up to eight, wanted or not."""


class DeviceStore:
    """Keys and values of every layer on the device, each `[layers, slots, K, D]`; slots as in `kv_cache/store.py`."""

    def __init__(
        self, config: "ModelConfig", num_blocks: int, block_size: int, *, xp: Any, dtype: Any, poison: bool
    ) -> None:
        """Zeros, or NaN with `poison`. Raises UsageError for sizes below 1."""
        if min(num_blocks, block_size) < 1:
            raise UsageError(f"a KV store needs positive sizes, not num_blocks={num_blocks} block_size={block_size}")
        self.num_blocks, self.block_size, self.num_slots = num_blocks, block_size, num_blocks * block_size
        shape = (config.num_hidden_layers, self.num_slots, config.num_key_value_heads, config.head_dim)
        self._k, self._v = xp.zeros(shape, dtype=dtype), xp.zeros(shape, dtype=dtype)
        # Filled and copied as bits, because few of CuPy's own kernels know bfloat16.
        bits: Any = np.uint16 if np.dtype(dtype).itemsize == 2 else np.uint32
        self._bits = self._k.view(bits), self._v.view(bits)
        if poison:
            for array in self._bits:
                array.fill(np.iinfo(bits).max)  # all ones is NaN in each of the three types
        self._gpu = xp.cuda.Device()
        self._layers = [(self._k[i], self._v[i]) for i in range(shape[0])]

    @property
    def nbytes(self) -> int:
        """Bytes held by the two arrays together."""
        return int(self._k.nbytes + self._v.nbytes)

    def layer(self, index: int) -> tuple[Any, Any]:
        """Keys and values of one layer: two views `[slots, K, D]`."""
        return self._layers[index]

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks `(source, destination)` in every layer: the copy of copy-on-write.

        An engine calls this first in every step, perhaps in another thread than the one that loaded the model; and
        which GPU is the current one is CuPy's business thread by thread.
        """
        self._gpu.use()
        size = self.block_size
        for source, destination in pairs:
            for array in self._bits:
                array[:, destination * size : (destination + 1) * size] = array[:, source * size : (source + 1) * size]


class Spans(NamedTuple):
    """Sequences of a step, on the device: first row, number of rows, tokens in all, block table; `longest` count."""

    starts: Any
    counts: Any
    lengths: Any
    tables: Any
    longest: int


class Step(NamedTuple):
    """What all layers of a step share. Buffers have `rows` rows, of which `tokens` are real; with `own_products` every
    product is our own kernel's, since CuPy cannot put cuBLAS into a graph."""

    tokens: int
    rows: int
    positions: Any
    slots: Any
    decoding: Spans | None
    prefilling: Spans | None
    own_products: bool


def widths(config: "ModelConfig") -> dict[str, tuple[int, bool]]:
    """Each intermediate of a step: numbers per token, and whether they are float32 (else the weights' type)."""
    c = config
    heads = c.num_attention_heads + 2 * c.num_key_value_heads
    return {
        "stream": (c.hidden_size, True),
        "normed": (c.hidden_size, False),
        "qkv": (heads * c.head_dim, False),
        "q": (c.num_attention_heads * c.head_dim, False),
        "attended": (c.num_attention_heads * c.head_dim, False),
        "gate_up": (2 * c.intermediate_size, False),
        "gated": (c.intermediate_size, False),
        "logits": (c.vocab_size, True),
    }


class Arena:
    """One buffer per intermediate. It grows when a step is larger than any before, which `reserve` rules out."""

    def __init__(self, config: "ModelConfig", xp: Any, dtype: Any) -> None:
        """Nothing is taken yet."""
        self._xp, self._dtype, self._widths = xp, dtype, widths(config)
        self._buffers: dict[str, Any] = {}
        self.generation = 0
        """Goes up whenever a buffer moves: a graph recorded before that has the old addresses in it."""

    def reserve(self, rows: int, logit_rows: int) -> None:
        """Take what steps of `rows` tokens and `logit_rows` rows of logits need."""
        for name in self._widths:
            self.rows(name, logit_rows if name == "logits" else rows)

    def rows(self, name: str, count: int) -> Any:
        """The first `count` rows of a buffer, as a contiguous view; what they hold is undefined."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            width, wide = self._widths[name]
            shape = (padded(count), width)
            buffer = self._buffers[name] = self._xp.zeros(shape, dtype=np.float32 if wide else self._dtype)
            self.generation += 1
        return buffer[:count]


def padded(rows: int) -> int:
    """`rows`, up to the next multiple of `ROW_STEP`.

    >>> padded(1), padded(8), padded(9)
    (8, 8, 16)
    """
    return -(-rows // ROW_STEP) * ROW_STEP


class Need(NamedTuple):
    """Bytes that an engine takes on a device, before it takes them."""

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        """All three."""
        return sum(self)


def need_of(config: "ModelConfig", parameters: int, slots: int, rows: int, logit_rows: int, itemsize: int) -> Need:
    """What `parameters` weights, a cache of `slots` tokens and steps of `rows` tokens take, numbers of `itemsize`.

    The rotation tables are float32 and count with the cache, whose length they share; what a large product returns,
    and cuBLAS's own workspace, is the rest of the activations.
    """
    c = config
    cache = 2 * c.num_hidden_layers * slots * c.num_key_value_heads * c.head_dim * itemsize
    tables = 4 * c.head_dim * min(slots, c.max_position_embeddings)
    buffers = sum(
        padded(logit_rows if name == "logits" else rows) * width * (4 if wide else itemsize)
        for name, (width, wide) in widths(c).items()
    )
    products = 2 * rows * (2 * c.intermediate_size + c.hidden_size) * itemsize
    return Need(parameters * itemsize, cache + tables, buffers + products + CUBLAS_WORKSPACE_BYTES)


CUBLAS_WORKSPACE_BYTES = 32 << 20
"""cuBLAS's default workspace on compute capability 9.0; smaller on older GPUs."""


def check_memory(device: "Device", need: Need, dtype: str, blocks: int, block_size: int, rows: int) -> None:
    """Raise DeviceError, with all numbers, if `need` exceeds what is free on the device."""
    free, total = device.xp.cuda.runtime.memGetInfo()
    free += device.xp.get_default_memory_pool().free_bytes()
    if need.total > free:
        raise DeviceError(
            f"{device.name} has {_mb(free)} MB free of {_mb(total)}, and this needs {_mb(need.total)}: weights "
            f"{_mb(need.weights)} ({dtype}), KV cache {_mb(need.cache)} ({blocks:,} blocks of {block_size} tokens), "
            f"activations {_mb(need.activations)} ({rows:,} tokens at a time); lower --num-blocks or "
            f"--max-num-batched-tokens, use a 16-bit --dtype, or --device cpu"
        )


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f}"

"""What attention remembers: the arrays of the KV cache.

A *slot* is the room for one token's keys and values in every layer. The store knows nothing but slots; which sequence
owns which slot is the bookkeeping of `pool.py`, and the two meet in the block table: token `p` of a sequence lives in

    slot = block_table[p // block_size] * block_size + p % block_size

Reading goes by *runs*, stretches of adjacent slots. A sequence whose blocks happen to follow one another is one run,
so a contiguous cache is nothing but the special case of a lucky (or well kept) table, and attention works on views of
this array instead of gathering blocks into a copy.

The layout is the one in which a decode step reads fastest: keys as `[K, D, slots]`, so that `q @ k` runs along
adjacent slots, and values as `[K, slots, D]`, so that `p @ v` does.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minifer.errors import UsageError


class KVStore:
    """Keys and values of every layer, `num_blocks * block_size` slots long.

    The arrays start as NaN in debug runs (`poison=True`), so that a slot that was never written cannot pass for a
    small number; otherwise as zeros.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        *,
        xp: Any = np,
        dtype: Any = np.float32,
        poison: bool = False,
        allocate: Callable[..., Any] | None = None,
    ) -> None:
        """Allocate everything at once: no step of generation allocates cache memory later.

        `allocate(shape, dtype=)` gives arrays of zeros; `xp.zeros` unless a room brings memory of its own.
        """
        if min(num_layers, num_kv_heads, head_dim, num_blocks, block_size) < 1:
            raise UsageError(
                f"a KV store needs positive sizes, not layers={num_layers} kv_heads={num_kv_heads} "
                f"head_dim={head_dim} num_blocks={num_blocks} block_size={block_size}"
            )
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        allocate = allocate or xp.zeros
        self._k = allocate((num_layers, num_kv_heads, head_dim, self.num_slots), dtype=dtype)
        self._v = allocate((num_layers, num_kv_heads, self.num_slots, head_dim), dtype=dtype)
        if poison:
            self._k.fill(np.nan)
            self._v.fill(np.nan)

    @property
    def nbytes(self) -> int:
        """Bytes held by the two arrays together."""
        return int(self._k.nbytes + self._v.nbytes)

    def k(self, layer: int) -> Any:
        """The keys of one layer: a view `[K, D, slots]`."""
        return self._k[layer]

    def v(self, layer: int) -> Any:
        """The values of one layer: a view `[K, slots, D]`."""
        return self._v[layer]

    def write(self, layer: int, slots: Any, k_TKD: Any, v_TKD: Any) -> None:
        """Put the keys and values of T tokens, each `[T, K, D]`, into `slots [T]` of one layer.

        subtle: with an index array beside slices NumPy puts the indexed axis where it stood, here last for keys.
        """
        self._k[layer][:, :, slots] = k_TKD.transpose(1, 2, 0)
        self._v[layer][:, slots] = v_TKD.transpose(1, 0, 2)

    def runs(self, block_table: Sequence[int], length: int) -> list[tuple[int, int]]:
        """The stretches `(first slot, slot after the last)` that hold the first `length` tokens of a table.

        >>> store = KVStore(1, 1, 2, num_blocks=6, block_size=4)
        >>> store.runs([2, 3, 0], 9)
        [(8, 16), (0, 1)]
        """
        return runs(block_table, length, self.block_size)

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks `(source, destination)` in every layer: the copy of copy-on-write."""
        size = self.block_size
        for source, destination in pairs:
            from_, to = slice(source * size, (source + 1) * size), slice(destination * size, (destination + 1) * size)
            self._k[:, :, :, to] = self._k[:, :, :, from_]
            self._v[:, :, to] = self._v[:, :, from_]


def runs(block_table: Sequence[int], length: int, block_size: int) -> list[tuple[int, int]]:
    """`KVStore.runs` as a plain function, for whoever has a table but no store.

    Raises UsageError if the table holds fewer than `length` tokens.
    """
    if length > len(block_table) * block_size:
        raise UsageError(f"{length} tokens do not fit {len(block_table)} blocks of {block_size}")
    found: list[tuple[int, int]] = []
    for index in range(-(-length // block_size)):
        start = block_table[index] * block_size
        stop = start + min(block_size, length - index * block_size)
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found

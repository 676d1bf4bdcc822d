"""The bookkeeping of the KV cache: which blocks are free, who holds which, and which may be shared.

The cache is cut into blocks of `block_size` slots. A sequence holds a *block table*, the list of its blocks in order,
and token p lives in slot `table[p // block_size] * block_size + p % block_size`. So memory is handed out a block at a
time, as an operating system hands out pages, and a sequence wastes at most the rest of its last block.

    table (7, 2), block size 4        slots 28 29 30 31 | 8 9 10 11
                                      token  0  1  2  3 | 4 5  6  7

* Tables are tuples: they go into plans and traces as they are, and nobody can change one behind another's back.
* Every block counts the tables it stands in. `fork` shares a table by raising the counts; whoever then wants to *write*
  into a shared block first gets a copy of it (`own`).
* With prefix caching, a block that was registered and then freed stays findable until it is needed (prefix.py). Such
  idle blocks count as free, but blank ones are handed out first.
* Adjacent blocks are preferred, since attention reads runs of slots (store.py): a new table starts in the middle of the
  longest blank stretch, so that the table on its left keeps room to grow. The counters `allocated` and `adjacent`
  (those that follow their predecessor) say how well it went.

What this file does not do: it never sees a key or a value, never decides who deserves a block, and imports no NumPy.
Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from minifer.errors import CapacityError, InvariantError, UsageError
from minifer.kv_cache.prefix import BlockKey, PrefixCache, extend_chain

Table = tuple[int, ...]
_STRETCH = re.compile(b"\1+")

SCARCE = 32
"""Less than one in so many blocks blank is few."""


class BlockPool:
    """A fixed number of blocks, handed out and taken back.

    >>> pool = BlockPool(num_blocks=8, block_size=4)
    >>> table = pool.allocate(2)
    >>> table, pool.slot(table, 5), pool.num_free
    ((0, 1), 5, 6)
    >>> pool.free(table)
    >>> pool.num_free
    8
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise UsageError(f"a pool needs at least one block of one token, got {num_blocks=} and {block_size=}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix = PrefixCache() if enable_prefix_caching else None
        self.refs = [0] * num_blocks  # how many tables each block stands in
        self.allocated = self.adjacent = self.copied = 0  # counters, in blocks
        self._blank = bytearray(b"\1" * num_blocks)  # 1: free, and nothing findable in it
        self._num_blank = num_blocks
        self._idle: dict[int, None] = self.prefix.idle if self.prefix else {}

    # ---- questions ---------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that no table holds: blank ones and idle ones."""
        return self._num_blank + len(self._idle)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need: the quotient, rounded up."""
        return -(-num_tokens // self.block_size)

    def slot(self, table: Table, position: int) -> int:
        """The slot of the token at `position`."""
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def slots(self, table: Table, start: int, stop: int) -> tuple[int, ...]:
        """The slots of positions `start` to `stop`, which the table must cover.

        >>> BlockPool(num_blocks=8, block_size=4).slots((6, 1), 2, 6)  # two of block 6, two of block 1
        (26, 27, 4, 5)
        """
        if stop - start == 1:  # a decode: worth its own line, it is most calls
            return (self.slot(table, start),)
        size = self.block_size
        return tuple([table[p // size] * size + p % size for p in range(start, stop)])

    def is_shared(self, block: int) -> bool:
        """Whether a write into this block would be seen through another table."""
        return self.refs[block] > 1

    # ---- handing out and taking back ---------------------------------------------------------------------------------

    def allocate(self, count: int, hit: Table = ()) -> Table:
        """A table of the found blocks `hit`, now held once more, and `count` new ones behind them.

        Raises CapacityError, and changes nothing, if there are not that many.
        """
        if count > (room := self.room_beside(hit)):
            raise CapacityError(f"asked for {count} blocks, but only {room} of {self.num_blocks} are free")
        for block in hit:
            self._hold(block)
        return hit + self._take(count, after=hit[-1] if hit else -1)

    def room_beside(self, hit: Table = ()) -> int:
        """How many blocks `allocate(..., hit)` could add: idle ones among `hit` are free, but not to be handed out."""
        return self.num_free - sum(not self.refs[block] for block in hit)

    def grow(self, table: Table) -> Table:
        """The table with one more block at its end, the next one in memory if that is blank."""
        return table + self._take(1, after=table[-1] if table else -1)

    def fork(self, table: Table) -> Table:
        """The same table for a second sequence: every block is now held once more."""
        for block in table:
            self._hold(block)
        return table

    def own(self, table: Table, index: int) -> tuple[Table, tuple[int, int]]:
        """Copy on write: the table with a new block at `index`, and the copy (from, to) that has to be made first.

        >>> pool = BlockPool(num_blocks=8, block_size=4)
        >>> pool.own(pool.allocate(2), 1)  # block 5, in the middle of what is free, takes the place of block 1
        ((0, 5), (1, 5))
        """
        old = table[index]
        (new,) = self._take(1, after=table[index - 1] if index else -1)
        self._release(old)
        self.copied += 1
        return (*table[:index], new, *table[index + 1 :]), (old, new)

    def free(self, table: Table) -> None:
        """Give a table back, from its end, so that the head of a prefix outlives its tail in the cache."""
        for block in reversed(table):
            self._release(block)

    def _hold(self, block: int) -> None:
        if self.refs[block] == 0:
            if block not in self._idle:
                raise InvariantError(f"block {block} is blank: there is nothing in it to share")
            del self._idle[block]
        self.refs[block] += 1

    def _release(self, block: int) -> None:
        """One table less holds `block`; the last one frees it. Raises InvariantError for a block that nobody holds.

        What prefix caching can still find becomes idle, everything else blank.

        >>> pool = BlockPool(num_blocks=8, block_size=4)
        >>> pool.refs[3], pool._blank[3], pool._num_blank = 1, 0, 7
        >>> pool._release(3)
        >>> pool.refs[3], pool._blank[3], pool.num_free
        (0, 1, 8)
        """
        if self.refs[block] == 0:
            raise InvariantError(f"block {block} was freed twice")
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if self.prefix is not None and block in self.prefix:
                self._idle[block] = None
            else:
                self._blank[block] = 1
                self._num_blank += 1

    # ---- which blocks: adjacent ones if possible ---------------------------------------------------------------------

    def _take(self, count: int, after: int) -> Table:
        """`count` new blocks, held once: blank ones behind `after` where there are, else the oldest idle ones."""
        if count > self.num_free:
            raise CapacityError(f"asked for {count} blocks, but only {self.num_free} of {self.num_blocks} are free")
        blank = self._take_blank(min(count, self._num_blank), after)
        evicted = sorted(self.prefix.evict() for _ in range(count - len(blank))) if self.prefix else []
        taken = (*blank, *evicted)
        for block in taken:
            self.refs[block] = 1
            self.adjacent += after >= 0 and block == after + 1
            after = block
        self.allocated += count
        return taken

    def _take_blank(self, count: int, after: int) -> list[int]:
        taken: list[int] = []
        where = after + 1
        while len(taken) < count:
            if not (where < self.num_blocks and self._blank[where]):
                where = self._start(count - len(taken))
            self._blank[where] = 0
            taken.append(where)
            where += 1
        self._num_blank -= count
        return taken

    def _start(self, count: int) -> int:
        """Where to begin a run: in the middle of the longest blank stretch, in whole multiples of `count`.

        Where blank blocks are scarce no stretch is long, and looking at all of them would cost more than it gains.
        """
        if self._num_blank * SCARCE < self.num_blocks:
            return self._blank.find(1)
        first, last = max((m.span() for m in _STRETCH.finditer(self._blank)), key=lambda span: span[1] - span[0])
        return first + (last - first) // 2 // count * count if first else 0

    # ---- prefix caching ----------------------------------------------------------------------------------------------

    def find(self, chain: list[BlockKey], token_ids: Sequence[int]) -> Table:
        """Written blocks that hold the beginning of `token_ids`; the sequence's `chain` is brought up to date.

        At least one token is left to compute, for its logits: of a sequence cached to the last token, the last block
        is dropped.
        """
        if self.prefix is None:
            return ()
        extend_chain(chain, token_ids, self.block_size)
        return self.prefix.find(chain[: (len(token_ids) - 1) // self.block_size])

    def register(self, table: Table, chain: list[BlockKey], token_ids: Sequence[int], start: int, stop: int) -> None:
        """Make blocks `start` to `stop` of a table findable, once the step that filled them has been committed."""
        if self.prefix is not None:
            extend_chain(chain, token_ids, self.block_size)
            for index in range(start, stop):
                self.prefix.register(table[index], chain[index])

    # ---- theorem: blocks are conserved -------------------------------------------------------------------------------

    def check(self, tables: Iterable[Table] = ()) -> None:
        """Raise `InvariantError` unless every block is exactly one of: held (as often as counted), idle, or blank."""
        held = Counter(block for table in tables for block in table)
        for block, refs in enumerate(self.refs):
            states = (refs > 0) + (block in self._idle) + self._blank[block]
            if states != 1 or refs != held[block]:
                raise InvariantError(f"block {block}: {refs} references, {held[block]} in tables, in {states} states")
        if sum(self._blank) != self._num_blank or self.num_free + len(held) != self.num_blocks:
            raise InvariantError(f"{self.num_free} free and {len(held)} held of {self.num_blocks} blocks")
        if self.prefix is not None:
            self.prefix.check()
            if any(block in self.prefix and self._blank[block] for block in range(self.num_blocks)):
                raise InvariantError("a blank block is registered in the prefix cache")

"""Which blocks of the pool already hold the keys and values of a known prefix.

What attention computes for a token depends on every token before it, so a block may be reused only if the *whole*
prefix is the same. The key of a block therefore chains: it hashes the digest of the block before it together with all
the ids of this one.

    ids    [ 5 6 7 8 | 9 9 1 2 | 3 ]        block size 4; the last block is not full, so it has no key
    chain    key 0  <- key 1                digest 1 = sha256(digest 0 + ids 9 9 1 2)

Two things keep a wrong answer out. A hit compares the ids and the parent, so a collision of digests is a miss and
nothing worse; and a block is registered only after the step that writes it has been committed, so nobody reads what
is not there yet. Blocks that no request holds any more stay findable until the pool needs them; the one unused for
longest goes first, and because a table is given back from its end, that is the tail of a chain before its head.

What this file does not do: it holds no arrays, and partly filled blocks are never shared through it (forked sequences
share them by reference count and copy on write, see pool.py). Source of the scheme: vLLM's automatic prefix caching.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from minifer.errors import InvariantError

ROOT = b"minifer prefix chain"  # the parent of a first block


class BlockKey(NamedTuple):
    """What a full block must hold to count as the same: these ids behind this parent."""

    digest: bytes
    parent: bytes
    ids: tuple[int, ...]


def digest_of(parent: bytes, ids: Sequence[int]) -> bytes:
    """The digest of a block: SHA-256 over the parent's digest and the ids, 8 bytes each.

    Whole ids, so that 70 and 326 differ though they share their low byte; and not Python's `hash`, which differs from
    one process to the next.

    >>> digest_of(ROOT, [70, 1]) == digest_of(ROOT, [326, 1])
    False
    """
    return sha256(parent + array("q", ids).tobytes()).digest()


def extend_chain(chain: list[BlockKey], token_ids: Sequence[int], block_size: int) -> None:
    """Append to `chain` the keys of those full blocks of `token_ids` that it lacks.

    >>> chain = []
    >>> extend_chain(chain, [5, 6, 7, 8, 9], block_size=2)
    >>> [key.ids for key in chain], chain[1].parent == chain[0].digest
    ([(5, 6), (7, 8)], True)
    """
    for start in range(len(chain) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = chain[-1].digest if chain else ROOT
        ids = tuple(token_ids[start : start + block_size])
        chain.append(BlockKey(digest_of(parent, ids), parent, ids))


class PrefixCache:
    """A table from keys to blocks, and the queue in which unused blocks wait to be reused.

    `idle` holds the registered blocks that no request uses, the least recently used first (a dict keeps its order).

    >>> cache, chain = PrefixCache(), []
    >>> extend_chain(chain, [1, 2, 3, 4], block_size=2)
    >>> cache.register(7, chain[0]), cache.find(chain)
    (True, (7,))
    """

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        # Not a plain dict: there, looking for the first key skips the places of all that were deleted before it.
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def find(self, chain: Sequence[BlockKey]) -> tuple[int, ...]:
        """The blocks of the longest known beginning of `chain`: up to the first hole, never past it.

        >>> cache, chain = PrefixCache(), []
        >>> extend_chain(chain, [1, 2, 3, 4, 5, 6], block_size=2)
        >>> cache.register(7, chain[0]), cache.register(4, chain[2])
        (True, True)
        >>> cache.find(chain)
        (7,)
        """
        hit = []
        for key in chain:
            block = self._block_of.get(key.digest)
            if block is None or self._key_of[block] != key:
                break
            hit.append(block)
        return tuple(hit)

    def register(self, block: int, key: BlockKey) -> bool:
        """Let a *written* block be found. False if another block already stands for this key: the first one stays."""
        if key.digest in self._block_of or block in self._key_of:
            return False
        self._block_of[key.digest] = block
        self._key_of[block] = key
        return True

    def evict(self) -> int:
        """Forget the idle block that was unused for longest, and hand it over."""
        block, _ = self.idle.popitem(last=False)
        del self._block_of[self._key_of.pop(block).digest]
        self.evictions += 1
        return block

    def check(self) -> None:
        """Raise `InvariantError` unless both tables mirror each other and every idle block is registered."""
        mirrored = {key.digest: block for block, key in self._key_of.items()}
        if mirrored != self._block_of or not self.idle.keys() <= self._key_of.keys():
            raise InvariantError("the prefix cache's tables contradict each other")

"""Which replica a request goes to, and why.

Replicas are equal in what they can do, and differ in two things: how much they have to do, and what they remember. A
router that looks at neither deals requests out like cards; one that looks at the load keeps queues even; one that looks
at memory sends a prompt where its beginning was computed before, so that the prefix cache finds it.

    round-robin       the next one that lives
    least-loaded      the one with the fewest unfinished requests; among equals the next one
    prefix-affinity   the one that was sent the longest beginning of this prompt, unless it has `max_imbalance` more to
                      do than the least loaded: then a cache hit is worth less than an empty queue

The third pulls against the second: a popular prefix makes one replica popular. `max_imbalance` is the price, in
requests, that a hit may cost; 0 asks the cache only among equals, infinity follows the cache into any queue.

The router never asks a replica what it holds. It remembers what it sent, in the same chained block keys as the prefix
cache (`kv_cache/prefix.py`), as many blocks per replica as the cache has room for and the least recently used first
out. That is a guess: a replica may have evicted a block that the router remembers. A wrong guess costs time, never a
wrong answer.

What this file does not do: no I/O, no clock, no threads. The simulator and the tests call it as the server does.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from minifer.errors import CapacityError, UsageError
from minifer.kv_cache.prefix import BlockKey, extend_chain

POLICIES = ("round-robin", "least-loaded", "prefix-affinity")

MEMORY_BLOCKS = 1 << 16
"""Blocks remembered per replica unless told otherwise: about 10 MB each."""

MAX_IMBALANCE = 4.0
"""Requests more than the least loaded has that a prefix hit may cost."""


@dataclass(frozen=True)
class Choice:
    """A replica, the reason in words, and how many tokens at the prompt's beginning it was sent before."""

    replica: int
    reason: str
    matched_tokens: int = 0


class Router:
    """Chooses a replica for each request, and remembers what it sent where.

    >>> router = Router("prefix-affinity", 2, block_size=2)
    >>> router.choose([1, 2, 3, 4], load=[0, 0])
    Choice(replica=0, reason='least loaded: 0 unfinished', matched_tokens=0)
    >>> router.choose([9, 9, 9, 9], load=[1, 0]).replica
    1
    >>> router.choose([1, 2, 3, 4, 5, 6], load=[1, 1])
    Choice(replica=0, reason='it has 4 of 6 tokens', matched_tokens=4)
    """

    def __init__(
        self,
        policy: str,
        num_replicas: int,
        *,
        block_size: int = 16,
        max_imbalance: float = MAX_IMBALANCE,
        memory_blocks: int = MEMORY_BLOCKS,
    ) -> None:
        """Raises UsageError for a policy that is not in POLICIES, or for sizes that make no sense."""
        if policy not in POLICIES:
            raise UsageError(f"there is no routing policy {policy!r}; there are {', '.join(POLICIES)}")
        if num_replicas < 1 or block_size < 1 or memory_blocks < 1 or not max_imbalance >= 0:
            raise UsageError(
                f"a router needs at least 1 replica, block_size and memory_blocks, and max_imbalance of at least 0, "
                f"not {num_replicas}, {block_size}, {memory_blocks} and {max_imbalance}"
            )
        self.policy, self.num_replicas, self.block_size = policy, num_replicas, block_size
        self.max_imbalance, self.memory_blocks = max_imbalance, memory_blocks
        self._last = num_replicas - 1
        self._sent: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(num_replicas)]  # oldest first

    def choose(self, prompt_ids: Sequence[int], load: Sequence[float], alive: Sequence[bool] | None = None) -> Choice:
        """The replica for this prompt.

        `load` is what each replica has to do, in requests (or in tokens: then `max_imbalance` is in tokens too).
        Raises CapacityError if none is alive.
        """
        living = [i for i in range(self.num_replicas) if alive is None or alive[i]]
        if not living:
            raise CapacityError("no replica is alive: wait until one has been restarted")
        chain: list[BlockKey] = []
        if self.policy == "prefix-affinity":
            extend_chain(chain, prompt_ids, self.block_size)
        choice = self._decide(chain, len(prompt_ids), load, living)
        self._last = choice.replica
        self._remember(choice.replica, chain)
        return choice

    def forget(self, replica: int) -> None:
        """A replica has died: whatever it had in its cache is gone."""
        self._sent[replica].clear()

    def matched(self, replica: int, prompt_ids: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt were sent to `replica` before, in whole blocks."""
        chain: list[BlockKey] = []
        extend_chain(chain, prompt_ids, self.block_size)
        return self._matched(replica, chain)

    def _decide(self, chain: list[BlockKey], length: int, load: Sequence[float], living: list[int]) -> Choice:
        """The policy: one of the `living` for a prompt of `length` tokens whose full blocks have the keys in `chain`.

        Among equals whoever is next in turn. A hit is worth at most `max_imbalance` more unfinished requests than the
        idlest replica has; without a hit, or beyond that, the idlest gets it.

        >>> router = Router("least-loaded", 3)
        >>> router._decide([], length=5, load=[4, 1, 1], living=[0, 2])
        Choice(replica=2, reason='least loaded: 1 unfinished', matched_tokens=0)
        """
        in_turn = sorted(living, key=lambda i: (i - self._last - 1) % self.num_replicas)
        if self.policy == "round-robin":
            return Choice(in_turn[0], "its turn")
        idlest = min(in_turn, key=lambda i: load[i])
        by_load = Choice(idlest, f"least loaded: {load[idlest]:g} unfinished")
        if self.policy == "least-loaded":
            return by_load
        found = {i: self._matched(i, chain) for i in in_turn}
        best = max(in_turn, key=lambda i: (found[i], -load[i]))
        if found[best] <= found[idlest]:
            return Choice(idlest, self._of_hit(found[idlest], length) or by_load.reason, found[idlest])
        if load[best] - load[idlest] > self.max_imbalance:
            why = f"{by_load.reason}; replica {best} has {found[best]} of {length} tokens, but {load[best]:g} to do"
            return Choice(idlest, why, found[idlest])
        return Choice(best, self._of_hit(found[best], length), found[best])

    @staticmethod
    def _of_hit(matched: int, length: int) -> str:
        return f"it has {matched} of {length} tokens" if matched else ""

    def _matched(self, replica: int, chain: list[BlockKey]) -> int:
        sent = self._sent[replica]
        blocks = next((i for i, key in enumerate(chain) if key.digest not in sent), len(chain))
        return blocks * self.block_size

    def _remember(self, replica: int, chain: list[BlockKey]) -> None:
        """Note the blocks, the end of the prompt as the oldest: a chain is of use only from its beginning."""
        sent = self._sent[replica]
        for key in reversed(chain[: self.memory_blocks]):
            sent[key.digest] = None
            sent.move_to_end(key.digest)
        while len(sent) > self.memory_blocks:
            sent.popitem(last=False)

"""One sequence with its KV cache: prefill the prompt, then decode a token at a time.

The keys and values of a token depend only on what stands before it. So they are computed once and kept, and a step
hands the model nothing but its *new* tokens: the whole prompt in one go or in chunks (prefill), then one token per step
(decode). The logits are the same as those of `generate.py`, which computes everything again; that is the theorem
which `tests/phase05_kv_cache` proves.

This is the contiguous cache of a single sequence: one long block. Many sequences that share a pool of small blocks are
the business of `scheduler/` and `engine.py`.
"""

from collections.abc import Sequence
from typing import Any

from minifer.errors import RequestError
from minifer.kv_cache.store import KVStore
from minifer.model.transformer import Room, forward
from minifer.model.weights import Weights
from minifer.ops.batch import make_batch


class Incremental:
    """A sequence that grows.

    `length` is how many of its tokens are in the cache. The store must be one block of the wanted capacity, as
    `ops.new_store(1, capacity)` makes it.
    """

    def __init__(self, weights: Weights, store: KVStore, ops: Room) -> None:
        """Start empty; the arrays of `store` may hold anything."""
        self.weights, self.store, self.ops = weights, store, ops
        self.length = 0

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> Any:
        """Append `tokens` and return the logits `[1, V]` after the last of them (`[len(tokens), V]` for all).

        Raises RequestError if there are no tokens, or more than the cache has room for.

        >>> from minifer import LLM
        >>> with LLM("tiny", room="reference") as llm:
        ...     sequence = Incremental(llm.weights, llm.ops.new_store(1, 8), llm.ops)
        ...     sequence.step([5, 6]).shape, sequence.step([7], all_logits=True).shape, sequence.length
        ((1, 1200), (1, 1200), 3)
        """
        if len(tokens) == 0:
            raise RequestError("a step needs at least one token")
        if self.length + len(tokens) > self.store.block_size:
            raise RequestError(f"{self.length} + {len(tokens)} tokens exceed the capacity of {self.store.block_size}")
        batch = make_batch([(tokens, self.length, (0,))], self.store.block_size, all_logits=all_logits)
        logits = forward(self.weights, batch, self.store, self.ops)
        self.length += len(tokens)
        return logits

    def prefill(self, prompt: Sequence[int], chunk: int | None = None) -> Any:
        """Append a prompt, `chunk` tokens at a time (None: all at once); logits `[1, V]` after its last token.

        >>> from minifer import LLM
        >>> with LLM("tiny", room="reference") as llm:  # three steps, of 2, 2 and 1 tokens
        ...     sequence = Incremental(llm.weights, llm.ops.new_store(1, 8), llm.ops)
        ...     sequence.prefill([5, 6, 7, 8, 9], chunk=2).shape, sequence.length
        ((1, 1200), 5)
        """
        size = chunk or max(1, len(prompt))
        logits = self.step(prompt[:size])
        for start in range(size, len(prompt), size):
            logits = self.step(prompt[start : start + size])
        return logits

    def decode_step(self, token: int) -> Any:
        """Append one token; logits `[1, V]` after it."""
        return self.step([token])

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens; nothing is erased, it is simply written over."""
        if not 0 <= length <= self.length:
            raise RequestError(f"cannot truncate {self.length} tokens to {length}")
        self.length = length

"""The forward pass: token ids in, logits out.

This is the whole of the model, for every family and for every room. What happens inside the two blocks is written in
`ops/reference.py`; a fast room does the same its own way. Prefill and decode are not two functions: a prompt is a step
with many rows for one sequence, decoding is a step with one row for each of many.

Source: Vaswani et al., "Attention Is All You Need", 2017, in the arrangement of Touvron et al., "LLaMA", 2023.
"""

from typing import Any, Protocol

from minifer.kv_cache.store import KVStore
from minifer.model.weights import Weights
from minifer.ops.batch import Batch


class Room(Protocol):
    """What `forward` needs of a room; see `ops/reference.py` for what each of these means."""

    def embed(self, embedding: Any, tokens: Any) -> Any: ...
    def rope_table(self, positions: Any) -> Any: ...
    def attention_block(self, x: Any, layer: Any, rope_table: Any, batch: Batch, store: Any, index: int) -> Any: ...
    def mlp_block(self, x: Any, layer: Any) -> Any: ...
    def head(self, x: Any, weights: Any, rows: Any) -> Any: ...


def forward(weights: Weights, batch: Batch, store: KVStore, ops: Room) -> Any:
    """Logits `[R, V]`, float32, for the rows that `batch.logit_rows` names.

    The keys and values of all T tokens are in the cache afterwards. The array that is returned may be the room's own
    buffer: it is valid until the next call.
    """
    x = ops.embed(weights.embedding, batch.tokens)  # [T, E]
    rope_table = ops.rope_table(batch.positions)
    for index, layer in enumerate(weights.layers):
        x = ops.attention_block(x, layer, rope_table, batch, store, index)  # [T, E]: tokens look at each other
        x = ops.mlp_block(x, layer)  # [T, E]: each token by itself
    return ops.head(x, weights, batch.logit_rows)  # [R, V]

"""What one step computes, laid out flat.

A step may hold a long piece of one prompt, the next token of seven running answers, or both at once. Nothing is
padded: the tokens of all sequences stand one after the other in one array of T rows, and a `Span` says which rows
belong to which sequence and what that sequence can see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a step.

    Rows `start` to `start + length` are its new tokens, `context` is how many of its tokens exist once they are
    written (so the last row has position `context - 1`), and `block_table` says where all of them live.
    """

    start: int
    length: int
    context: int
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: `tokens`, `positions`, `slots` are integer arrays `[T]`; `logit_rows` `[R]` names the rows that need
    logits, which during the prefill of a prompt is only the last one."""

    tokens: Any
    positions: Any
    slots: Any
    spans: tuple[Span, ...]
    logit_rows: Any

    @property
    def num_tokens(self) -> int:
        """T, the number of rows."""
        return len(self.tokens)


def make_batch(
    sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    block_size: int,
    *,
    all_logits: bool = False,
    xp: Any = np,
) -> Batch:
    """The flat batch of `(new tokens, start position, block table)` per sequence.

    Logits are asked for the last row of each sequence, or with `all_logits` for every row.

    >>> batch = make_batch([([7, 8, 9], 0, [1]), ([5], 4, [0, 2])], block_size=4)
    >>> batch.positions.tolist(), batch.slots.tolist(), batch.logit_rows.tolist()
    ([0, 1, 2, 4], [4, 5, 6, 8], [2, 3])
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for new, first, table in sequences:
        spans.append(Span(len(tokens), len(new), first + len(new), tuple(table)))
        tokens += new
        places = range(first, first + len(new))
        positions += places
        slots += [table[p // block_size] * block_size + p % block_size for p in places]
    rows = range(len(tokens)) if all_logits else [span.start + span.length - 1 for span in spans]
    as_index = np.int64
    return Batch(
        xp.asarray(np.array(tokens, dtype=as_index)),
        xp.asarray(np.array(positions, dtype=as_index)),
        xp.asarray(np.array(slots, dtype=as_index)),
        tuple(spans),
        xp.asarray(np.array(rows, dtype=as_index)),
    )

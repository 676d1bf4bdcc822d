"""Generation is a loop around one function.

A language model is a function from the tokens so far to a score for every possible next token. Everything else in
minifer serves to call that function faster, for more people at once; this file is what it is about:

    while True:
        logits = model(everything so far)
        token = choose(logits)

Here the function is called with the whole text again for every token, which is what the KV cache will make
unnecessary (`incremental.py`): the work for token n grows with n, and the reader can see it grow.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from minifer.errors import RequestError

Model = Callable[[Sequence[int]], np.ndarray]
"""Token ids of a whole text `[n]` -> logits of the next token `[V]`."""

Choose = Callable[[np.ndarray], int]
"""Logits `[V]` -> one token id."""


def greedy(logits: np.ndarray) -> int:
    """The most likely token of `logits [V]`; the smallest id among equals.

    >>> greedy(np.array([0.5, 2.0, 2.0]))
    1
    """
    return int(np.argmax(logits))


def generate(
    model: Model,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    eos_ids: Sequence[int] = (),
    choose: Choose = greedy,
) -> Iterator[int]:
    """Yield the tokens that follow `prompt_ids`, one at a time.

    Ends after `max_tokens` tokens, or after an end-of-sequence token, which is yielded too. Raises RequestError for an
    empty prompt: there is no next token of nothing. (Models that can begin a text do so with a BOS token.)

    >>> table = {7: 8, 8: 9, 9: 0}  # a model that is a table: what follows what
    >>> model = lambda ids: np.eye(10)[table[ids[-1]]]
    >>> list(generate(model, [7], max_tokens=5, eos_ids=[0]))
    [8, 9, 0]
    """
    if len(prompt_ids) == 0:
        raise RequestError("the prompt is empty: give at least one token")
    if max_tokens < 0:
        raise RequestError(f"max_tokens must be at least 0, not {max_tokens}")
    ids = list(prompt_ids)
    for _ in range(max_tokens):
        logits = model(ids)  # everything so far, computed again
        token = choose(logits)
        yield token
        if token in eos_ids:
            return
        ids.append(token)

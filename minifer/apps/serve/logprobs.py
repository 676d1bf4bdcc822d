"""Log-probabilities in OpenAI's two forms: lists side by side for completions, one object per token for chats.

A token is bytes, and JSON has only text. One that is not whole characters is written as OpenAI does it, as
`bytes:\\xf0\\x9f`, so that two different tokens never get the same name.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minifer.apps.serve.messages import Piece, Top

if TYPE_CHECKING:
    from minifer.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have (vLLM's number)."""


def bytes_of(tokenizer: "Tokenizer | None", token_id: int) -> bytes:
    """The bytes of a token; of a model without a vocabulary, its number."""
    return tokenizer.token_bytes(token_id) if tokenizer else f" {token_id}".encode()


def name_of(data: bytes) -> str:
    """A token's bytes as text.

    >>> name_of(" café".encode()), name_of(b"\\xf0\\x9f")
    (' café', 'bytes:\\\\xf0\\\\x9f')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _number(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)


def of_chat(tokenizer: "Tokenizer | None", pieces: Sequence[Piece]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        data = bytes_of(tokenizer, token_id)
        return {"token": name_of(data), "logprob": _number(logprob), "bytes": list(data)}

    content = [
        {**entry(piece.token_id, piece.logprob), "top_logprobs": [entry(*pair) for pair in piece.top]}
        for piece in pieces
        if piece.token_id is not None
    ]
    return {"content": content, "refusal": None}


class Table:
    """The `logprobs` of a completion choice, filled token by token; offsets count characters over all of them."""

    def __init__(self, tokenizer: "Tokenizer | None", count: int) -> None:
        """`count` is how many of the likeliest tokens were asked for."""
        self.tokenizer, self.count, self.offset = tokenizer, count, 0
        self._empty()

    def add_prompt(self, ids: Sequence[int], scores: Sequence[tuple[float, Top]]) -> None:
        """The prompt's tokens; the first has no log-probability, since nothing comes before it."""
        for token_id, (logprob, top) in zip(ids, [(None, ()), *scores], strict=False):
            self._add(token_id, logprob, top)

    def add(self, pieces: Sequence[Piece]) -> "Table":
        """The tokens of an answer."""
        for piece in pieces:
            if piece.token_id is not None:
                self._add(piece.token_id, _number(piece.logprob), piece.top)
        return self

    def taken(self) -> dict[str, Any]:
        """What was added since the last call."""
        rows = self._rows
        self._empty()
        return rows

    def _empty(self) -> None:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        self._rows: dict[str, list[Any]] = {name: [] for name in names}

    def _add(self, token_id: int, logprob: float | None, top: Top) -> None:
        data, rows = bytes_of(self.tokenizer, token_id), self._rows
        rows["tokens"].append(name_of(data))
        rows["token_logprobs"].append(None if logprob is None else max(logprob, LOWEST))
        best = {name_of(bytes_of(self.tokenizer, i)): max(p, LOWEST) for i, p in top}
        rows["top_logprobs"].append(None if logprob is None or not self.count else best)
        rows["text_offset"].append(self.offset)
        self.offset += len(data.decode("utf-8", "replace"))

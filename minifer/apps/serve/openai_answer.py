"""How OpenAI's answers are put: whole, or as events; and the numbers that go with them.

`whole` waits for every piece and makes one body. `events` makes one event per token that has brought text, those of a
step of the engine joined into one write. What both say is the same (the tests compare them).
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from minifer.apps.serve import logprobs
from minifer.apps.serve.answers import Group
from minifer.apps.serve.messages import Costs, Piece
from minifer.apps.serve.protocol import ApiError
from minifer.apps.serve.reply import Call, sse
from minifer.apps.serve.service import Service


@dataclass(frozen=True)
class Ask:
    """One checked request, and how its answers are to be put."""

    id: str
    created: int
    model: str
    chat: bool
    n: int
    echo: bool
    logprobs: int | None
    usage: bool  # as a last event of a stream
    prompts: list[tuple[int, ...]]
    echoes: list[str]

    def head(self, chunk: bool) -> dict[str, Any]:
        """What every body and every event begins with."""
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


# ---- all at once -----------------------------------------------------------------------------------------------------


async def whole(service: Service, call: Call, ask: Ask, group: Group) -> dict[str, Any]:
    """The whole body, once every answer has ended."""
    with group:
        found = await group.whole()
        call.routed(group)
    choices, costs = [], []
    for i, pieces in enumerate(found):
        for index in range(ask.n):
            mine = [piece for piece in pieces if piece.answer == index]
            call.ended(mine[-1])
            choices.append(_choice(service, ask, i, index, mine, pieces))
            costs.append(mine[-1].costs)
    return {**ask.head(chunk=False), "choices": choices, "usage": usage(ask.n, costs), "timings": timings(costs[0])}


def _choice(
    service: Service, ask: Ask, prompt: int, index: int, mine: list[Piece], all_pieces: list[Piece]
) -> dict[str, Any]:
    last = mine[-1]
    if last.finish_reason == "error":
        raise broken(last)
    text = "".join(piece.text for piece in mine)
    place, reason = prompt * ask.n + index, last.finish_reason
    if ask.chat:
        found = logprobs.of_chat(service.tokenizer, mine) if ask.logprobs is not None else None
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": place, "message": message, "logprobs": found, "finish_reason": reason}
    listed = None
    if ask.logprobs is not None:
        table = logprobs.Table(service.tokenizer, ask.logprobs)
        if ask.echo:
            scores = next((p.prompt_logprobs for p in all_pieces if p.prompt_logprobs is not None), ())
            table.add_prompt(ask.prompts[prompt], scores)
        listed = table.add(mine).taken()
    text = ask.echoes[prompt] + text if ask.echo else text
    return {"index": place, "text": text, "logprobs": listed, "finish_reason": reason}


# ---- as it comes -----------------------------------------------------------------------------------------------------


async def events(service: Service, call: Call, ask: Ask, group: Group) -> AsyncIterator[bytes]:
    """Events, those of one step of the engine joined into one write."""
    costs: list[Costs | None] = []
    begun = False
    choices: dict[tuple[int, int], Choice] = {}
    with group:
        async for batch in group.batches():
            events: list[bytes] = []
            for prompt, piece in batch:
                key = (prompt, piece.answer)
                choice = choices.get(key) or choices.setdefault(key, Choice(service, ask, prompt, piece.answer))
                if piece.finish_reason is not None:
                    call.ended(piece)
                    costs.append(piece.costs)
                if piece.finish_reason == "error" and not begun and not events:
                    raise broken(piece)
                if (event := choice.event(piece)) is not None:
                    events.append(sse(event))
            if events:
                begun = True
                yield b"".join(events)
        call.routed(group)
    tail = sse({**ask.head(True), "choices": [], "usage": usage(ask.n, costs)}) if ask.usage else b""
    yield tail + b"data: [DONE]\n\n"


class Choice:
    """One answer of a stream: what it still has to say."""

    def __init__(self, service: Service, ask: Ask, prompt: int, index: int) -> None:
        self.service, self.ask, self.prompt, self.place = service, ask, prompt, prompt * ask.n + index
        self.table = logprobs.Table(service.tokenizer, ask.logprobs or 0)
        self.held: list[Piece] = []  # tokens whose text has not come yet
        self.begun = False

    def event(self, piece: Piece) -> dict[str, Any] | None:
        """The event for a piece, or None if it has nothing to show yet."""
        if piece.finish_reason == "error":
            return broken(piece).openai()
        self.held.append(piece)
        echo = self.ask.echo and not self.begun
        if not piece.text and piece.finish_reason is None and not echo:
            return None
        choice = self._of_chat(piece) if self.ask.chat else self._of_text(piece, echo)
        self.held, self.begun = [], True
        event = {
            **self.ask.head(True),
            "choices": [{"index": self.place, **choice, "finish_reason": piece.finish_reason}],
        }
        if self.ask.usage:
            event["usage"] = None
        if piece.finish_reason is not None:
            event["timings"] = timings(piece.costs)
        return event

    def _of_chat(self, piece: Piece) -> dict[str, Any]:
        delta: dict[str, Any] = {} if self.begun else {"role": "assistant"}
        if piece.text or not self.begun:
            delta["content"] = piece.text
        found = logprobs.of_chat(self.service.tokenizer, self.held) if self.ask.logprobs is not None else None
        return {"delta": delta, "logprobs": found}

    def _of_text(self, piece: Piece, echo: bool) -> dict[str, Any]:
        if self.ask.logprobs is None:
            listed = None
        else:
            if echo:
                self.table.add_prompt(self.ask.prompts[self.prompt], piece.prompt_logprobs or ())
            listed = self.table.add(self.held).taken()
        return {"text": (self.ask.echoes[self.prompt] if echo else "") + piece.text, "logprobs": listed}


def broken(piece: Piece) -> ApiError:
    """The error that a broken answer is: the engine's fault, so it says why and that trying again may help."""
    return ApiError(500, piece.error or "the request failed", code="engine_error")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def usage(n: int, costs: list[Costs | None]) -> dict[str, Any]:
    """Token counts; a prompt with n answers was processed, and counts, once."""
    known = [cost for cost in costs if cost is not None]
    prompt, output = sum(c.prompt_tokens for c in known) // n, sum(c.output_tokens for c in known)
    cached = {"cached_tokens": sum(c.cached_tokens for c in known) // n}
    total = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {**total, "prompt_tokens_details": cached}


def timings(costs: Costs | None) -> dict[str, Any] | None:
    """llama-server's `timings` of one answer. Prefill is what was not in the cache; a rate over the n - 1 gaps."""
    if costs is None:
        return None
    fresh = costs.prompt_tokens - costs.cached_tokens
    gaps = costs.output_tokens - 1
    prompt, predicted = _rates("prompt", fresh, costs.prefill_s), _rates("predicted", gaps, costs.decode_s)
    return {
        "cache_n": costs.cached_tokens,
        "prompt_n": fresh,
        **prompt,
        "predicted_n": costs.output_tokens,
        **predicted,
    }


def _rates(name: str, count: int, seconds: float | None) -> dict[str, float | None]:
    known = seconds is not None and count > 0 and seconds > 0
    return {
        f"{name}_ms": None if seconds is None else seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if known and seconds is not None else None,
        f"{name}_per_second": count / seconds if known and seconds is not None else None,
    }

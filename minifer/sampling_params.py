"""What a request may ask of the sampler, checked once, before anything is computed.

The names, meanings and order of the fields are vLLM's, so that what is learnt here is of use there.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from minifer.errors import RequestError

GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy: no other token keeps any probability there."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the tokens of one request, and when to stop; names and meanings are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 are off; `top_p` 0 keeps one token. The
    repetition penalty (above 1 discourages) counts prompt and answer; presence and frequency penalties the answer only.
    `seed` None takes a fresh one. `max_tokens` None means as many as the context has room for. `logprobs` k reports the
    k most likely tokens beside the chosen one, which is always reported; None reports nothing.
    Raises RequestError for a value outside its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Check every range; a single stop string or a list becomes a tuple."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        for rows, whole in ((_WHOLE, True), (_REAL, False)):
            for name, low, high in rows:
                _check_range(name, getattr(self, name), low, high, whole=whole)
        if any(not isinstance(text, str) or text == "" for text in stop):
            raise RequestError(f"stop must be non-empty strings, not {self.stop!r}")
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in self.stop_token_ids):
            raise RequestError(f"stop_token_ids must be token ids, not {self.stop_token_ids!r}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


_Range = tuple[str, float | None, float | None]

_WHOLE: tuple[_Range, ...] = (
    ("n", 1, 128),
    ("top_k", -1, None),
    ("seed", None, None),
    ("max_tokens", 0, None),
    ("logprobs", 0, None),
)
_OPTIONAL = ("seed", "max_tokens", "logprobs")
_REAL: tuple[_Range, ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def _check_range(name: str, value: object, low: float | None, high: float | None, *, whole: bool) -> None:
    if value is None and name in _OPTIONAL:
        return
    right_kind = isinstance(value, Integral if whole else Real)
    if isinstance(value, bool) or not right_kind or not math.isfinite(value):  # type: ignore[arg-type]
        raise RequestError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {bounds}, not {value!r}")

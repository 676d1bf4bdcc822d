"""The journey of one request in numbers: what `minifer demo` prints, draws and writes as JSON.

A `Journey` holds time stamps, counts and two measured ceilings, and derives everything else from them. It knows no
model and no clock, so it can be tested with numbers worked out by hand.

Times are seconds from the moment the request was sent. FLOPs and bytes are those that `model/cost.py` predicts from
the configuration; the *share of the ceiling* is the least time they could take on this machine over the time they took.
"""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minifer.apps.numerals import megabytes, milliseconds, three
from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, num_parameters, step_cost
from minifer.roofline.probes import Ceilings

FLOAT32_BYTES = 4
OVERHEAD_BELOW = 0.5
"""With less than this share of its ceiling, a phase spends most of its time on neither reading nor arithmetic."""

BUSY = 0.25
"""More than this share of the cores in use by others, and the figures are not this machine's."""

NOT_QUIET = 0.1
"""If a ceiling moves by more than this between before and after, something else was using the machine."""


@dataclass(frozen=True)
class Phase:
    """Prefill or decode: how many tokens it took in or made, in how many seconds, and its predicted work."""

    name: str
    tokens: int
    seconds: float
    cost: Cost
    ceilings: Ceilings

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def flops_per_s(self) -> float:
        """Predicted FLOPs over measured seconds."""
        return self.cost.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Predicted bytes over measured seconds."""
        return self.cost.bytes / self.seconds

    @property
    def limiter(self) -> str:
        """The ceiling that this phase would meet first: `arithmetic` or `reading`."""
        return self.ceilings.limiter(self.cost.flops, self.cost.bytes)

    @property
    def share(self) -> float:
        """The least possible time over the measured time, 0 to 1 (above 1 if a cache helped)."""
        return self.ceilings.least_seconds(self.cost.flops, self.cost.bytes) / self.seconds

    @property
    def regime(self) -> str:
        """`arithmetic`, `reading` or `overhead`: where most of the time went."""
        return self.limiter if self.share >= OVERHEAD_BELOW else "overhead"

    def speed_in_words(self) -> str:
        """The speed in the unit of the ceiling it meets: `117 of 178 GFLOP/s` or `21.9 of 28.2 GB/s`."""
        if self.limiter == "arithmetic":
            return f"{three(self.flops_per_s / 1e9)} of {three(self.ceilings.flops_per_s / 1e9)} GFLOP/s"
        return f"{three(self.bytes_per_s / 1e9)} of {three(self.ceilings.read_bytes_per_s / 1e9)} GB/s"

    def regime_in_words(self) -> str:
        """One sentence on what limited this phase, with the numbers that say so."""
        each = f"{self.cost.intensity:.3g} FLOPs per byte, where this machine can do {self.ceilings.ridge:.3g}"
        if self.regime == "arithmetic":
            return f"{self.name} is limited by arithmetic: {each}, since its tokens share one reading of the weights."
        if self.regime == "reading":
            return f"{self.name} is limited by reading memory: {each}, since each step reads all weights again."
        least = f"{self.limiter} at full speed would need {self.share:.0%} of its time"
        return f"{self.name} is limited by overhead: {least}; the rest is calls, small operations and waiting."


@dataclass(frozen=True)
class Journey:
    """One request from text to text.

    `pieces` are the texts of the question's own tokens; `prompt_tokens` counts those of the chat template too.
    `scheduled_s` is when the engine began to compute, `token_times_s` when each token of the answer was there.
    `num_cached` prompt tokens were found in the KV cache and not computed. `answer_pieces` are the texts that each
    token added, for the figure.
    """

    model: str
    config: ModelConfig
    question: str
    answer: str
    answer_pieces: tuple[str, ...]
    pieces: tuple[str, ...]
    prompt_tokens: int
    tokenize_s: float
    scheduled_s: float
    token_times_s: tuple[float, ...]
    finish_reason: str | None
    ceilings: Ceilings
    ceilings_after: Ceilings
    conditions: dict[str, Any]
    num_cached: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to first token: sent to the first token of the answer, tokenization included."""
        return self.token_times_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: the gaps between successive tokens."""
        return [b - a for a, b in pairwise(self.token_times_s)]

    @property
    def prefill(self) -> Phase:
        """From the first step to the first token: the prompt goes through the model."""
        new = self.prompt_tokens - self.num_cached
        cost = _total(self.config, [Work(new, self.prompt_tokens)])
        return Phase("prefill", new, self.ttft_s - self.scheduled_s, cost, self.ceilings)

    @property
    def decode(self) -> Phase | None:
        """From the first token to the last, a token per step. None for an answer of one token."""
        steps = len(self.token_times_s) - 1
        if steps < 1:
            return None
        costs = (_total(self.config, [Work(1, self.prompt_tokens + i + 1)]) for i in range(steps))
        seconds = self.token_times_s[-1] - self.token_times_s[0]
        return Phase("decode", steps, seconds, sum(costs, Cost()), self.ceilings)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * FLOAT32_BYTES

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache at the end: the last one of the answer was never fed in."""
        return self.prompt_tokens + len(self.token_times_s) - 1

    @property
    def drift(self) -> float:
        """How far the ceilings moved while the request ran, relative, signed."""
        return self.ceilings.drift(self.ceilings_after)

    def lines(self) -> list[str]:
        """The journey as a table and its explanation, ready to be printed."""
        rows = [
            ("text", f"{len(self.question)} characters, wrapped in the model's chat template"),
            (
                "tokens",
                f"{self.prompt_tokens} in {milliseconds(self.tokenize_s)}; the question: {_bounded(self.pieces)}",
            ),
            ("prefill", self._station(self.prefill, "for")),
            ("KV cache", f"{self.kv_bytes_per_token:,} bytes x {self.kv_tokens} tokens = {self._kv_total()}"),
        ]
        if self.decode is not None:
            rows.append(("decode", self._station(self.decode, "for each of")))
        rows.append(("TTFT", f"{milliseconds(self.ttft_s)} from sending to the first token"))
        if gaps := self.gaps_s:
            spread = f"median; {milliseconds(min(gaps))} to {milliseconds(max(gaps))}"
            rows.append(("ITL", f"{milliseconds(statistics.median(gaps))} between tokens ({spread})"))
        table = [f"{name:<10}{text}" for name, text in rows]
        return [f"{'':<76}of its ceiling", *table, *self.remarks()]

    def remarks(self) -> list[str]:
        """A warning if the machine was busy, then the regimes in words."""
        warning = ""
        if abs(self.drift) > NOT_QUIET:
            warning = f"a ceiling moved by {self.drift:+.0%} meanwhile"
        elif self.others > BUSY:
            warning = f"other programs kept {self.others:.0%} of it busy before the request"
        remarks = [f"Machine not quiet: {warning}, so take no figure home."] if warning else []
        return remarks + [phase.regime_in_words() for phase in (self.prefill, self.decode) if phase is not None]

    @property
    def others(self) -> float:
        """The share of all cores that other programs used just before the request; 0 where that is not known."""
        return self.conditions.get("others_busy") or 0.0

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints; times in seconds."""
        phases = {p.name: _phase_dict(p) for p in (self.prefill, self.decode) if p is not None}
        return {
            "model": self.model,
            "question": self.question,
            "text": self.answer,
            "finish_reason": self.finish_reason,
            "tokens": {"prompt": self.prompt_tokens, "cached": self.num_cached, "output": len(self.token_times_s)},
            "tokenize_s": self.tokenize_s,
            "kv_cache": {"bytes_per_token": self.kv_bytes_per_token, "tokens": self.kv_tokens},
            "ttft_s": self.ttft_s,
            "itl_s": self.gaps_s,
            **phases,
            "ceilings": vars(self.ceilings) | {"drift": self.drift},
            "remarks": self.remarks(),
            "conditions": self.conditions,
        }

    def _station(self, phase: Phase, per: str) -> str:
        """One phase: time, tokens and speed, then its ceiling and the share that was reached."""
        seconds = phase.seconds if per == "for" else phase.seconds / phase.tokens
        work = f"{milliseconds(seconds)} {per} {phase.tokens} tokens, {three(phase.tokens_per_s)} tok/s"
        return f"{work:<42}{phase.speed_in_words():<24}{phase.share:4.0%} {phase.limiter}"

    def _kv_total(self) -> str:
        return megabytes(self.kv_bytes_per_token * self.kv_tokens)


def heading(model: str, config: ModelConfig, ceilings: Ceilings) -> str:
    """The model and the machine in one line."""
    n = num_parameters(config)
    machine = f"{three(ceilings.read_bytes_per_s / 1e9)} GB/s, {three(ceilings.flops_per_s / 1e9)} GFLOP/s"
    size = f"{n / 1e6:.1f} million parameters, {n * FLOAT32_BYTES / 1e6:,.0f} MB in float32"
    return f"{model}: {size}. Ceilings with {ceilings.threads} threads: {machine}"


def _total(config: ModelConfig, work: list[Work]) -> Cost:
    return sum(step_cost(config, work).values(), Cost())


def _phase_dict(phase: Phase) -> dict[str, Any]:
    return {
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "tokens_per_s": phase.tokens_per_s,
        "flops": phase.cost.flops,
        "bytes": phase.cost.bytes,
        "flops_per_s": phase.flops_per_s,
        "bytes_per_s": phase.bytes_per_s,
        "intensity": phase.cost.intensity,
        "limiter": phase.limiter,
        "share": phase.share,
        "regime": phase.regime,
    }


def _bounded(pieces: tuple[str, ...], width: int = 40) -> str:
    """The pieces with `|` between them, control characters spelled out, cut after `width` characters."""
    text = "|".join(piece.encode("unicode_escape").decode() if not piece.isprintable() else piece for piece in pieces)
    return text if len(text) <= width else text[: width - 3] + "..."

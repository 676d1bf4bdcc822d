"""How long a step takes, without running it.

What a step costs depends on few numbers: how many rows go through the linear layers, how many of them need logits, and
what attention has to read and multiply. `Features` are these numbers of a plan. Two formulas turn them into seconds:

    RooflineTime   counts of work under two ceilings, exactly as `roofline/predict.py` adds them up
    FittedTime     a sum whose terms were measured on this machine (calibrate.py)

Not here: when a step happens (fleet.py).
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, attention_cost, step_cost
from minifer.roofline.predict import CLASSES, Roof
from minifer.scheduler.plan import ScheduledSeq


class Features(NamedTuple):
    """What the time of a step depends on.

    `seen` is the number of keys that the decoding sequences read together, each at most the model's window;
    `chunks` are the prompts' parts of the step, `(new tokens, context after them)`.
    """

    decodes: int
    seen: int
    logits: int
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Rows that go through the linear layers."""
        return self.decodes + sum(length for length, _ in self.chunks) if self.chunks else self.decodes


class StepTime(Protocol):
    """Anything that turns features into seconds."""

    def seconds(self, features: Features) -> float:
        """The predicted time of a step, in seconds."""

    def decoding(self, decodes: int) -> Callable[[int], float]:
        """The same for steps in which `decodes` sequences get a token each and nothing else happens: a function of
        the keys they see. To the last bit what `seconds` says; made once and asked for thousands of steps."""


def features_of(seqs: Sequence[ScheduledSeq], window: int) -> Features:
    """The features of a plan's sequences, for a model that sees `window` tokens back.

    >>> decode = ScheduledSeq("a", (7,), 20, (20,), (0, 1), True, "decode")
    >>> prompt = ScheduledSeq("b", (1, 2, 3), 0, (32, 33, 34), (2,), False, "prefill")
    >>> features_of([decode, prompt], window=16)
    Features(decodes=1, seen=16, logits=1, chunks=((3, 3),))
    """
    decodes = seen = logits = 0
    chunks: list[tuple[int, int]] = []
    for seq in seqs:
        length = len(seq.tokens)
        context = seq.start + length
        logits += seq.samples
        if length == 1:
            decodes += 1
            seen += context if context < window else window
        else:
            chunks.append((length, context))
    return Features(decodes, seen, logits, tuple(chunks))


class _Line(NamedTuple):
    """A quantity of one operation: what is there anyway, and what comes with each row and each row of logits."""

    once: float
    per_row: float
    per_logit: float

    def at(self, rows: int, logits: int) -> float:
        return self.once + rows * self.per_row + logits * self.per_logit


class RooflineTime:
    """A step as a sum of operations, each as long as its arithmetic or its reading, whichever is longer.

    The numbers are those of `predict_step`, whose formulas are straight lines in rows and logits; they are asked for
    three times here and the lines kept, because a simulation needs a million steps and that function takes its time.

    `split` is the degree of tensor parallelism: each machine does that part of every operation; `per_row_s` and
    `per_step_s` is what they then have to tell each other (machine.py works it out).
    """

    def __init__(
        self,
        config: ModelConfig,
        roof: Roof,
        *,
        weight_bytes: float = 4,
        activation_bytes: int = 4,
        split: int = 1,
        per_step_s: float = 0.0,
        per_row_s: float = 0.0,
    ) -> None:
        self.config, self.activation_bytes = config, activation_bytes
        self.flops_per_s, self.bytes_per_s = roof.flops_per_s * split, roof.read_bytes_per_s * split
        self.per_row_s = per_row_s
        sizes = {"weight_bytes": weight_bytes, "activation_bytes": activation_bytes}
        at = {(t, r): step_cost(config, [Work(t, t)], num_logits=r, **sizes) for t, r in ((1, 1), (2, 1), (1, 2))}  # type: ignore[arg-type]
        self._lines = [_lines(*(costs[name] for costs in at.values())) for name in at[1, 1] if name != "attention"]
        self._decode = self._decode_line()
        overheads = [roof.overhead_s.get(name, (0.0, 0.0)) for name in CLASSES]
        self.per_step_s = per_step_s + sum(once for once, _ in overheads)
        self.per_sequence_s = sum(further for _, further in overheads)
        self._decoding: dict[int, Callable[[int], float]] = {}

    def seconds(self, features: Features) -> float:
        """The time of a step, in seconds."""
        if not features.chunks and features.logits == features.decodes:
            return self.decoding(features.decodes)(features.seen)
        plain = self._without_attention(features.rows, features.logits, features.decodes + len(features.chunks))
        return plain + self._attention(features)

    def decoding(self, decodes: int) -> Callable[[int], float]:
        """The time of steps that only decode, as a function of the keys seen."""
        found = self._decoding.get(decodes)
        if found is None:
            found = self._decoding[decodes] = self._decoding_line(decodes)
        return found

    def _decoding_line(self, decodes: int) -> Callable[[int], float]:
        plain = self._without_attention(decodes, decodes, decodes)
        once, per_key = self._decode
        flops, traffic = decodes * once.flops / self.flops_per_s, decodes * once.bytes / self.bytes_per_s
        flops_per_key, bytes_per_key = per_key.flops / self.flops_per_s, per_key.bytes / self.bytes_per_s

        def seconds(seen: int) -> float:
            compute, reading = flops + seen * flops_per_key, traffic + seen * bytes_per_key
            return plain + (compute if compute > reading else reading)

        return seconds

    def _without_attention(self, rows: int, logits: int, sequences: int) -> float:
        total = self.per_step_s + self.per_sequence_s * (sequences - 1) + self.per_row_s * rows
        for flops, traffic in self._lines:
            total += max(flops.at(rows, logits) / self.flops_per_s, traffic.at(rows, logits) / self.bytes_per_s)
        return total

    def _attention(self, features: Features) -> float:
        once, per_key = self._decode
        flops = features.decodes * once.flops + features.seen * per_key.flops
        traffic = features.decodes * once.bytes + features.seen * per_key.bytes
        for length, context in features.chunks:
            cost = attention_cost(self.config, Work(length, context), self.activation_bytes)
            flops += self.config.num_hidden_layers * cost.flops
            traffic += self.config.num_hidden_layers * cost.bytes
        return max(flops / self.flops_per_s, traffic / self.bytes_per_s)

    def _decode_line(self) -> tuple[Cost, Cost]:
        """The cost of one decoding sequence without its keys, and of one key, over all layers."""
        layers = self.config.num_hidden_layers
        one, two = (attention_cost(self.config, Work(1, n), self.activation_bytes).times(layers) for n in (1, 2))
        per_key = Cost(0, two.flops - one.flops, two.bytes - one.bytes)
        return Cost(0, one.flops - per_key.flops, one.bytes - per_key.bytes), per_key


def _lines(one: Cost, row: Cost, logit: Cost) -> tuple[_Line, _Line]:
    """FLOPs and bytes of an operation as lines, from its cost at (1, 1), (2, 1) and (1, 2) rows and logits."""

    def line(a: float, b: float, c: float) -> _Line:
        return _Line(a - (b - a) - (c - a), b - a, c - a)

    return line(one.flops, row.flops, logit.flops), line(one.bytes, row.bytes, logit.bytes)


@dataclass(frozen=True)
class Curve:
    """A line through measured points. Beyond the last one it goes on as its last piece does, but never downwards.

    >>> curve = Curve((1, 2, 4), (10.0, 12.0, 20.0))
    >>> [curve(n) for n in (1, 3, 8)]
    [10.0, 16.0, 36.0]
    """

    at: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        """The value at `n`."""
        at, seconds = self.at, self.seconds
        if len(at) == 1:
            return seconds[0]
        i = min(max(bisect_right(at, n) - 1, 0), len(at) - 2)
        rise = seconds[i + 1] - seconds[i]
        if n > at[-1]:
            rise = max(rise, 0.0)
        return seconds[i] + rise * (n - at[i]) / (at[i + 1] - at[i])


@dataclass(frozen=True)
class FittedTime:
    """A step as a sum of measured terms, all in seconds.

        nobody reads a prompt      decoding(decodes)
        somebody does              rows(T) + decode_s * decodes + logit_s * logits
                                   + sum over chunks of (chunk_s + pair_s * pairs of query and key + chunk_key_s * keys)
        either                     + key_s * keys seen by those who decode

    Two curves and not one, because an engine goes two ways: with one row for each sequence everything is reading and
    attention looks at one query, with a prompt most is arithmetic. Curves and not lines, because a product of few rows
    is all reading, one of many all arithmetic, and libraries change their ways in between.
    """

    decoding_curve: Curve
    rows_curve: Curve
    key_s: float = 0.0
    decode_s: float = 0.0
    logit_s: float = 0.0
    chunk_s: float = 0.0
    pair_s: float = 0.0
    chunk_key_s: float = 0.0
    window: int = 1 << 62

    def seconds(self, features: Features) -> float:
        """The time of a step, in seconds."""
        if not features.chunks:
            return self.decoding(features.decodes)(features.seen)
        total = self.rows_curve(features.rows) + self.decode_s * features.decodes + self.logit_s * features.logits
        for length, context in features.chunks:
            keys, pairs = chunk_work(length, context, self.window)
            total += self.chunk_s + self.pair_s * pairs + self.chunk_key_s * keys
        return total + self.key_s * features.seen

    def decoding(self, decodes: int) -> Callable[[int], float]:
        """The time of steps that only decode, as a function of the keys seen."""
        plain, key_s = self.decoding_curve(decodes), self.key_s
        return lambda seen: plain + key_s * seen


def seconds_per_request(time: StepTime, prompt: int, answer: int, seats: int) -> float:
    """What a request costs a machine whose seats are all taken: its prompt, and its share of decode steps.

    >>> flat = FittedTime(Curve((1, 2), (0.01, 0.02)), Curve((1, 2), (0.01, 0.02)))
    >>> round(seconds_per_request(flat, prompt=10, answer=4, seats=2), 9)
    0.14
    """
    context = prompt + answer // 2
    prefill = time.seconds(Features(0, 0, 1, ((prompt, prompt),)))
    return prefill + answer * time.seconds(Features(seats, seats * context, seats)) / seats


def chunk_work(length: int, context: int, window: int) -> tuple[int, int]:
    """Keys that a chunk reads, and pairs of query and key that it multiplies.

    >>> chunk_work(3, 3, window=100), chunk_work(2, 10, window=100), chunk_work(2, 10, window=4)
    ((3, 6), (10, 19), (5, 8))
    """
    first = context - length
    growing = max(0, min(context, window) - first)  # queries that still see everything before them
    pairs = growing * first + growing * (growing + 1) // 2 + (length - growing) * window
    return min(context, window + length - 1), pairs

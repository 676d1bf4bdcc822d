"""Real steps on the clock, and where their time goes.

A step is run twice over: plainly, for its time, and with timers around the operations, for the parts. A timer costs
something itself, about as much as a small NumPy call, so its cost is measured and reported with every result.

Where several processes share the work (the CPU room), the timers stand in the first of them. It waits for the others
after each operation, and that wait belongs to the operation: it is how long the operation took with everybody counted.
It is also noted on its own, because waiting is what a better split would save.

`null_overhead` runs the same steps on a model with the same number of layers and heads and matrices of next to no size.
What remains is the price of the program itself: the third ceiling.

Not here: the engine, sampling, text. This is about `forward` alone.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from minifer import ops as rooms
from minifer.device import Device
from minifer.errors import CapacityError
from minifer.model.config import ModelConfig
from minifer.model.cost import Work
from minifer.model.transformer import forward
from minifer.model.weights import build_weights, random_tensors
from minifer.ops import reference
from minifer.ops.batch import make_batch

NULL_HEAD_DIM, NULL_SIZE, NULL_BATCH, NULL_CONTEXT = 2, 32, 8, 8

KV_LIMIT_BYTES = 4e9
PATIENCE_S = 1.5
"""Repeat a short step for about this long."""

MANY = 25
"""More repetitions than this tell nothing new."""


@dataclass(frozen=True)
class Step:
    """A kind of step: `batch` sequences that each get `length` new tokens, after which each has `context` of them."""

    batch: int
    length: int
    context: int

    @property
    def phase(self) -> str:
        """`prefill` for several tokens at a time, `decode` for one."""
        return "prefill" if self.length > 1 else "decode"

    @property
    def work(self) -> list[Work]:
        """For `step_cost`."""
        return [Work(self.length, self.context)] * self.batch

    def __str__(self) -> str:
        if self.phase == "prefill":
            return f"prefill {self.length:,}"
        return f"decode {self.batch} at {self.context:,}"


@dataclass(frozen=True)
class Measured:
    """A step's times in seconds: `seconds` of every plain repetition; by class of operations the medians of the timed
    ones, `waits` being the part of `parts` spent waiting for other processes; `timer_s` what the timers cost."""

    step: Step
    seconds: tuple[float, ...]
    parts: dict[str, float]
    waits: dict[str, float]
    timer_s: float

    @property
    def median_s(self) -> float:
        """The middle repetition."""
        return statistics.median(self.seconds)


@dataclass
class Timers:
    """Adds up seconds by class of operations. A timed call inside a timed call counts for the outer one alone."""

    parts: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    _last: str = "other"
    _inside: bool = False

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time added to `name`; with the name `wait` to whatever was timed last."""

        def wrapper(*args: Any) -> Any:
            waiting = name == "wait"
            if self._inside and not waiting:
                return call(*args)
            outer, self._inside = self._inside, True
            self._last = self._last if waiting else name
            start = time.perf_counter()
            result = call(*args)
            took = time.perf_counter() - start
            self.calls, self._inside = self.calls + 1, outer
            if waiting:
                self.waits[self._last] = self.waits.get(self._last, 0.0) + took
            if not outer:
                self.parts[self._last] = self.parts.get(self._last, 0.0) + took
            return result

        return wrapper


def places(ops: Any) -> list[tuple[Any, str, str]]:
    """What to put timers around in a room: (object, attribute, class of operations). Another room is another line."""
    if ops.name == "reference":
        return [(reference, "linear", "linears"), (ops, "_attend", "attention"), (ops, "head", "head")]
    if ops.name == "cpu":
        rank = ops._rank
        return [(rank, "linear", "linears"), (rank, "_attend", "attention"), (rank, "logits", "head"),
                (rank.meeting, "meet", "wait")]  # fmt: skip
    return []


@contextmanager
def timers_in(ops: Any) -> Iterator[Timers]:
    """Timers around a room's operations, taken out again at the end."""
    timers, before = Timers(), []
    try:
        for target, attribute, name in places(ops):
            before.append((target, attribute, vars(target).get(attribute)))
            setattr(target, attribute, timers.timed(name, getattr(target, attribute)))
        yield timers
    finally:
        for target, attribute, original in before:
            delattr(target, attribute) if original is None else setattr(target, attribute, original)


def timer_seconds(calls: int = 2000) -> float:
    """What one timer costs: a timed function that does nothing, less the same function without its timer."""
    bare, timed = (lambda: None), Timers().timed("nothing", lambda: None)
    times = []
    for call in (bare, timed):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return max(0.0, times[1] - times[0])


def measure_step(
    config: ModelConfig,
    weights: Any,
    ops: Any,
    device: Device,
    step: Step,
    *,
    repeats: int = 5,
    kv_limit_bytes: float = KV_LIMIT_BYTES,
    pick: Callable[[list[float]], float] = statistics.median,
) -> Measured:
    """Run a step at least `repeats` times without timers and twice with them, taking turns.

    Of the timed repetitions `pick` chooses the time of each part. The cache is filled with a constant instead of a real
    past: the time doesn't depend on the numbers. Raises CapacityError, before anything is allocated, if the cache would
    take more than `kv_limit_bytes`.
    """
    needed = step.batch * step.context * config.kv_bytes_per_token
    if needed > kv_limit_bytes:
        limit = f"the limit of {kv_limit_bytes / 1e9:.1f} GB"
        raise CapacityError(
            f"{step}: {needed / 1e9:.1f} GB of KV cache exceed {limit}; take fewer or shorter sequences"
        )
    store = ops.new_store(step.batch, step.context)
    for layer in range(config.num_hidden_layers):
        store.k(layer)[...] = store.v(layer)[...] = 0.01
    past = step.context - step.length
    tokens = [i % config.vocab_size for i in range(step.length)]
    batch = make_batch([(tokens, past, (i,)) for i in range(step.batch)], step.context, xp=device.xp)

    def once() -> float:
        start = time.perf_counter()
        forward(weights, batch, store, ops)
        device.synchronize()
        return time.perf_counter() - start

    return _take_turns(step, once, ops, repeats, pick)


def _take_turns(
    step: Step, once: Callable[[], float], ops: Any, repeats: int, pick: Callable[[list[float]], float]
) -> Measured:
    """Plain and timed repetitions, alternating while there are timed ones left; the first of all only warms up."""
    count = min(MANY, max(repeats, round(PATIENCE_S / max(once(), 1e-6))))
    plain, timed = [], []
    for turn in range(count):
        plain.append(once())
        if turn < max(2, count // 2):
            with timers_in(ops) as timers:
                timed.append((once(), timers))
    parts = {name: pick([t.parts.get(name, 0.0) for _, t in timed]) for name in timed[0][1].parts}
    waits = {name: pick([t.waits.get(name, 0.0) for _, t in timed]) for name in timed[0][1].waits}
    rest = pick([seconds - sum(t.parts.values()) for seconds, t in timed])
    parts["other"] = parts.get("other", 0.0) + rest
    return Measured(step, tuple(plain), parts, waits, timed[0][1].calls * timer_seconds())


def null_overhead(config: ModelConfig, room: str, device: Device, **options: Any) -> dict[str, tuple[float, float]]:
    """What a decode step costs without its work: by class of operations, the seconds of a step with one sequence and
    of each further one. A ceiling like the others, so the best repetition counts."""
    null = replace(
        config, hidden_size=NULL_SIZE, intermediate_size=NULL_SIZE, vocab_size=NULL_SIZE, head_dim=NULL_HEAD_DIM,
        rope_scaling=None,
    )  # fmt: skip
    ops = rooms.open_room(room, null, device, **options)
    try:
        weights = ops.prepare(build_weights(null, random_tensors(null, seed=0)))
        steps = (Step(1, 1, NULL_CONTEXT), Step(NULL_BATCH, 1, NULL_CONTEXT))
        one, many = (measure_step(null, weights, ops, device, s, repeats=MANY, pick=min).parts for s in steps)
    finally:
        ops.close()
    return {name: (one[name], max(0.0, many[name] - one[name]) / (NULL_BATCH - 1)) for name in one}

"""Real steps on the clock, and where their time goes.

A step is run twice over: plainly, for its time, and with timers around the operations (those of `profile.py`), for the
parts. A timer costs something itself, about as much as a small NumPy call, so its cost is reported with every result.

Where several processes share the work (the CPU room), the timers stand in the first of them. It waits for the others
after each operation, and that wait belongs to the operation: it is how long the operation took with everybody counted.
It is also noted on its own, because waiting is what a better split would save.

`null_overhead` runs the same steps on a model with the same number of layers and heads and matrices of next to no size.
What remains is the price of the program itself: the third ceiling.

Not here: whole jobs as a benchmark runs them (`speed.py`), the engine, sampling, text. This is about `forward` alone.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minifer import ops as rooms
from minifer.device import Device
from minifer.errors import CapacityError
from minifer.model.config import ModelConfig
from minifer.model.cost import Work
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch
from minifer.roofline.predict import CLASSES
from minifer.roofline.profile import WAITING, Timers, group_of, null_model, timers_in

NULL_BATCH, NULL_CONTEXT = 8, 8

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


CLASS_OF = {"linears": "linears", "attention": "attention", "head": "head"}
"""From the groups of `profile.GROUPS` to the classes of `predict.CLASSES`; every other group is `other`."""


def by_class(timers: Timers) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by class of operations, each with the waiting that followed it, and that waiting alone.

    >>> from collections import Counter
    >>> timers = Timers(ns=Counter(qkv=3, waiting=4, rope=2), waits=Counter(qkv=1, rest=3))
    >>> by_class(timers)[0] == {"linears": 4e-9, "attention": 0, "head": 0, "other": 5e-9}
    True
    """
    parts, waits = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0.0)
    for counts, into in ((timers.ns, (parts,)), (timers.waits, (parts, waits))):
        for kind, ns in counts.items():
            for seconds in into if kind != WAITING else ():
                seconds[CLASS_OF.get(group_of(kind), "other")] += ns / 1e9
    return parts, waits


def timer_seconds(calls: int = 2000) -> float:
    """What one timer costs: a timed function that does nothing, less the same function without its timer."""
    bare, timed = (lambda: None), Timers().wrap(lambda: None, "rest")
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
        sizes = f"{needed / 1e9:.3g} GB of KV cache exceed the limit of {kv_limit_bytes / 1e9:.3g} GB"
        raise CapacityError(f"{step}: {sizes}; take fewer or shorter sequences")
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

    return _take_turns(step, once, ops, weights, repeats, pick)


def _take_turns(
    step: Step,
    once: Callable[[], float],
    ops: Any,
    weights: Any,
    repeats: int,
    pick: Callable[[list[float]], float],
) -> Measured:
    """Plain and timed repetitions, alternating while there are timed ones left; the first of all only warms up."""
    count = min(MANY, max(repeats, round(PATIENCE_S / max(once(), 1e-6))))
    plain, timed, calls = [], [], 0
    for turn in range(count):
        plain.append(once())
        if turn < max(2, count // 2):
            with timers_in(ops, weights) as timers:
                timers.restart()
                once()
                timers.stop()
            timed.append(by_class(timers))
            calls = timers.calls.total()
    parts, waits = ({name: pick([t[i][name] for t in timed]) for name in CLASSES} for i in (0, 1))
    return Measured(step, tuple(plain), parts, waits, calls * timer_seconds())


def null_overhead(config: ModelConfig, room: str, device: Device, **options: Any) -> dict[str, tuple[float, float]]:
    """What a decode step costs without its work: by class of operations, the seconds of a step with one sequence and
    of each further one. A ceiling like the others, so the best repetition counts."""
    null = null_model(config)
    ops = rooms.open_room(room, null.config, device, **options)
    try:
        weights = ops.prepare(null.weights)
        steps = (Step(1, 1, NULL_CONTEXT), Step(NULL_BATCH, 1, NULL_CONTEXT))
        one, many = (measure_step(null.config, weights, ops, device, s, repeats=MANY, pick=min).parts for s in steps)
    finally:
        ops.close()
    return {name: (one[name], max(0.0, many[name] - one[name]) / (NULL_BATCH - 1)) for name in one}

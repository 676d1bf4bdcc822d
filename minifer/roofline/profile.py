"""Where the time of a step goes: every operation of a room against the least that it could take.

A speed says that something is lost, a profile says where. Timers are put around the operations of a room while a job
runs, and taken out again; the time in which none of them runs is Python's. Beside each stands its floor: the longer of
FLOPs over the arithmetic ceiling and bytes over the reading ceiling, and the ratio of the two. A ratio near 1 is done;
a large one with a small share is not worth the trouble.

The CPU room works with several ranks. The timers sit in the first one, and since all do the same work at the same time
its times are those of the step; `waiting` is what it spent until the others arrived.

A timer costs about half a microsecond, and a step of 30 layers has some 400 of them: the plain step beside the timed
one says how much that was.
"""

import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, step_cost
from minifer.model.load import Model
from minifer.model.weights import build_weights, random_tensors
from minifer.roofline import speed
from minifer.roofline.probes import Ceilings
from minifer.roofline.speed import Job, RoomBench

GROUPS = {
    "linears": ("qkv", "output", "gate_up", "down", "linear"),
    "attention": ("attention",),
    "head": ("head",),
    "elementwise": ("norm", "rope", "swiglu", "kv_write", "embed"),
    "waiting": ("waiting",),
    "Python": ("batch", "begin", "rest"),
}
"""What the parts of a step belong to. `linear` are products whose weight was not recognised, `batch` and `begin` lay a
step out, and `rest` is all that no timer covered, residual additions included."""

REST, WAITING = "rest", "waiting"

PRODUCTS = (*GROUPS["linears"], *GROUPS["attention"], *GROUPS["head"])
"""What a rank waits for when it waits: the operations whose work is split."""

MATRICES = {
    "qkv": "qkv", "wq": "qkv", "wk": "qkv", "wv": "qkv", "out": "output", "wo": "output",
    "gate_up": "gate_up", "w_gate": "gate_up", "w_up": "gate_up", "down": "down", "w_down": "down",
}  # fmt: skip
"""By the names of fields that hold them, in the reference's weight tree and in a rank's shards."""

NULL_SIZE, NULL_HEAD_DIM, NULL_DEPTH, NULL_STEPS = 32, 2, 8, 48


@dataclass
class Timers:
    """Nanoseconds and calls by kind. A timer that starts inside another one stops that for as long as it runs.

    `waits` holds the nanoseconds of `waiting` again, by the last of `PRODUCTS` before each.
    """

    ns: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    _running: list[str] = field(default_factory=lambda: [REST])
    _since: int = field(default_factory=lambda: time.perf_counter_ns())
    _last: str = REST

    def wrap(self, function: Callable[..., Any], kind: "str | Callable[..., str]") -> Callable[..., Any]:
        """The same function with a timer around it; `kind` is a name, or finds it from the arguments."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            name = kind if isinstance(kind, str) else kind(*args)
            self._enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def restart(self) -> None:
        """Forget what was measured; what runs from now on is `REST` until a timer starts."""
        self.ns.clear()
        self.calls.clear()
        self.waits.clear()
        self._since = time.perf_counter_ns()

    def stop(self) -> None:
        """Book the time since the last timer ended."""
        self._book(time.perf_counter_ns())

    def _enter(self, name: str) -> None:
        self._book(time.perf_counter_ns())
        self._running.append(name)
        self.calls[name] += 1
        if name in PRODUCTS:
            self._last = name

    def _leave(self) -> None:
        self._book(time.perf_counter_ns())
        self._running.pop()

    def _book(self, now: int) -> None:
        self.ns[self._running[-1]] += now - self._since
        if self._running[-1] == WAITING:
            self.waits[self._last] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Part:
    """One kind of operation within an average step: its calls, its seconds, and the least that these could be."""

    kind: str
    group: str
    calls: float
    seconds: float
    floor_s: float

    @property
    def ratio(self) -> float | None:
        """How many times its floor it takes; None where there is no floor."""
        return self.seconds / self.floor_s if self.floor_s else None


@dataclass(frozen=True)
class Profile:
    """The parts of a step, largest first; `plain_s` is the median step without timers, `timed_s` the one they add up
    to, and `steps` how many were timed."""

    job: Job
    steps: int
    plain_s: float
    timed_s: float
    parts: tuple[Part, ...]

    @property
    def floor_s(self) -> float:
        """The least time of a step: the sum over its parts."""
        return sum(part.floor_s for part in self.parts)

    def share(self, part: Part) -> float:
        """A part's share of the timed step."""
        return part.seconds / self.timed_s


def profile(bench: RoomBench, job: Job, ceilings: Ceilings, repeats: int = 3) -> Profile:
    """Run a job `repeats` times without timers and as often with them, in turn; all figures are per step."""
    bench.run(job, warm_up=True)
    count = sum(1 for _ in job.steps(bench.ubatch))
    plain: list[float] = []
    ns: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for _ in range(repeats):
        plain.append(bench.run(job) / count)
        with timers_in(bench.ops, bench.weights) as timers:
            timers.restart()
            bench.run(job)
            timers.stop()
        ns, calls = ns + timers.ns, calls + timers.calls
    steps = repeats * count
    floors = floors_of(bench.config, job, ceilings, bench.ubatch)
    parts = [
        Part(kind, group_of(kind), calls[kind] / steps, ns[kind] / 1e9 / steps, floors.get(kind, 0.0)) for kind in ns
    ]
    parts.sort(key=lambda part: -part.seconds)
    return Profile(job, steps, sorted(plain)[len(plain) // 2], sum(p.seconds for p in parts), tuple(parts))


def group_of(kind: str) -> str:
    """The group that a part of a step belongs to.

    >>> group_of("gate_up")
    'linears'
    """
    return next(group for group, kinds in GROUPS.items() if kind in kinds)


def floors_of(config: ModelConfig, job: Job, ceilings: Ceilings, ubatch: int) -> dict[str, float]:
    """The least seconds of every operation in the average step of a job, all its operands counted as read."""
    steps = list(job.steps(ubatch))
    total: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, cost in step_cost(config, step).items():
            total[name] += _least(cost, ceilings)
    return {name: seconds / len(steps) for name, seconds in total.items()}


def _least(cost: Cost, ceilings: Ceilings) -> float:
    return ceilings.least_seconds(cost.flops, cost.bytes)


@contextmanager
def timers_in(ops: Any, weights: Any) -> Iterator[Timers]:
    """Timers around the operations of a room, taken out again at the end.

    A room's functions are found where the room itself looks them up, in its module and in its rank, so that no line of
    the room knows about timers.
    """
    timers, before = Timers(), []
    try:
        for owner, name, kind in places(ops, weights):
            if not hasattr(owner, name):
                continue  # the room does it another way: its time stands under what calls it
            before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, timers.wrap(getattr(owner, name), kind))
        yield timers
    finally:
        for owner, name, original in reversed(before):
            delattr(owner, name) if original is None else setattr(owner, name, original)


def places(ops: Any, weights: Any) -> list[tuple[Any, str, Any]]:
    """What to put timers around: (object, attribute, kind). Another room is another line."""
    module, product = sys.modules[type(ops).__module__], by_weight(ops, weights)
    shared = [
        (speed, "make_batch", "batch"), (ops, "embed", "embed"), (ops, "rope_table", "rope"),
        (module, "swiglu", "swiglu"),
    ]  # fmt: skip
    if ops.name == "cpu":
        rank = ops._rank
        return [
            *shared, (rank, "linear", product), (rank, "_attend", "attention"), (rank, "_write", "kv_write"),
            (rank, "begin", "begin"), (rank.meeting, "meet", WAITING), (module, "normed", "norm"),
            (module, "rotate", "rope"),
        ]  # fmt: skip
    return [
        *shared, (module, "linear", product), (module, "attention", "attention"), (module, "rms_norm", "norm"),
        (module, "rope", "rope"),
    ]  # fmt: skip


def by_weight(ops: Any, weights: Any) -> Callable[..., str]:
    """Which linear layer a product is, told by the weight among its arguments."""
    rank = getattr(ops, "_rank", None)
    layers, head = (rank.layers, rank.top) if rank else (weights.layers, weights.head)
    kinds = {id(head): "head"}
    for layer in layers:
        assert is_dataclass(layer)
        for part in fields(layer):
            if part.name in MATRICES:
                kinds[id(getattr(layer, part.name))] = MATRICES[part.name]

    def kind(*args: Any) -> str:
        return next((kinds[id(a)] for a in args if id(a) in kinds), "linear")

    return kind


def null_model(config: ModelConfig) -> Model:
    """The same layers and heads around next to no numbers: every call of a step is made, and none has work to do."""
    null = replace(
        config, hidden_size=NULL_SIZE, intermediate_size=NULL_SIZE, vocab_size=NULL_SIZE, head_dim=NULL_HEAD_DIM,
        rope_scaling=None,
    )  # fmt: skip
    return Model("null", null, build_weights(null, random_tensors(null)), None)


def null_profile(config: ModelConfig, room: str, threads: int, steps: int = NULL_STEPS) -> Profile:
    """A decode step of one sequence without its numbers: what Python, the calls into NumPy and the ranks' meetings
    take. `plain_s` is the overhead of a step."""
    bench = RoomBench(null_model(config), room, threads)
    try:
        return profile(bench, Job(n_gen=steps, n_depth=NULL_DEPTH), Ceilings(math.inf, math.inf, 0, threads))
    finally:
        bench.close()

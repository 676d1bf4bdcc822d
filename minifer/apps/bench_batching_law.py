"""Static against continuous batching: what waiting for the longest answer costs, by law, in slot-steps, in seconds.

A static batch of B seats runs until its longest answer is done. It pays for `B * max(lengths)` slot-steps where
`sum(lengths)` were useful, so continuous batching, which gives a free seat to the next request at once, gains

    E[max of B lengths] / E[length]     fixed: 1     uniform: 2 B / (B + 1)     exponential: 1 + 1/2 + ... + 1/B

Seconds are another matter. A step with b sequences takes about `a + c b`: `a` for what is done once (reading the
weights), `c` for each sequence. The tokens cost the same `c` with either scheduler; only the number of steps differs,
so the gain in time is `(a * static steps + c * tokens) / (a * continuous steps + c * tokens)`. It comes near the law
where `a` outweighs `c b`, as on a GPU, and where an engine computes padding for the empty seats; it is small where
each sequence costs nearly as much as the weights.
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minifer.apps.bench_batching_rows import BLOCK, Advance, Row, Sizes
from minifer.engine import Engine
from minifer.errors import InvariantError
from minifer.executor import ModelExecutor
from minifer.kv_cache.store import KVStore
from minifer.limits import EngineConfig
from minifer.roofline.speed import Job, RoomBench
from minifer.sampling_params import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor
from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.scheduler.request import Request
from minifer.scheduler.static import StaticScheduler

SHAPES = ("fixed", "uniform", "exponential")
SCHEDULERS = {"static": StaticScheduler, "continuous": ContinuousScheduler}
SWEEP = (2, 4, 8, 16)
PROMPT = 1
"""Tokens in a prompt: as few as there can be. Prompts cost the same with either scheduler and would blur the law."""

NEAR = 0.10
"""How far the measured slot-steps may be from the law: lengths are drawn, so both of its means are estimates."""


def law(shape: str, batch: int) -> float:
    """E[max of `batch` lengths] / E[length].

    >>> [round(law(shape, 8), 3) for shape in SHAPES]
    [1.0, 1.778, 2.718]
    """
    laws = {"fixed": 1.0, "uniform": 2 * batch / (batch + 1), "exponential": sum(1 / k for k in range(1, batch + 1))}
    return laws[shape]


def draw_lengths(shape: str, count: int, mean: int, seed: int) -> list[int]:
    """`count` answer lengths of the given mean, at least 1; the same ones for the same seed.

    >>> draw_lengths("exponential", 4, 12, seed=0) == draw_lengths("exponential", 4, 12, seed=0)
    True
    """
    rng = random.Random(f"{shape} {seed}")
    draw = {
        "fixed": lambda: mean,
        "uniform": lambda: rng.randint(1, 2 * mean - 1),
        "exponential": lambda: max(1, round(rng.expovariate(1 / mean))),
    }[shape]
    return [draw() for _ in range(count)]


@dataclass
class Watch:
    """Stands where a trace would, and notes of each step: seats paid for, sequences, seconds."""

    steps: list[tuple[int, int, float]] = field(default_factory=list)

    def added(self, request: Request, now: float) -> None:
        """Not of interest."""

    def stepped(self, plan: StepPlan, events: list[TokenEvent], now: float) -> None:  # noqa: ARG002
        """Note a step."""
        self.steps.append((plan.seats, len(plan.seqs), now - plan.time))

    def ended(self, events: list[TokenEvent]) -> None:
        """Not of interest."""

    @property
    def slot_steps(self) -> int:
        """Seats paid for, over all steps."""
        return sum(step[0] for step in self.steps)

    @property
    def sequence_steps(self) -> int:
        """Seats that worked, over all steps."""
        return sum(step[1] for step in self.steps)

    @property
    def seconds(self) -> float:
        """From the first step's beginning to the last one's end, but for what lies between steps."""
        return sum(step[2] for step in self.steps)


def run_workload(engine: Engine, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> Watch:
    """Ask everything at once, and run until all is answered. Every answer has exactly its length."""
    engine.trace = watch = Watch()
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add(Request(f"r{number}", tuple(prompt), params))
    if broken := next((event.error for event in engine.run() if event.error), None):
        raise InvariantError(f"a request of the workload broke down, so its time means nothing: {broken}")
    return watch


def limits_for(batch: int, lengths: Sequence[int]) -> EngineConfig:
    """As many blocks as the longest answers of a batch can need, so that nothing but seats is scarce."""
    blocks = batch * -(-(PROMPT + max(lengths)) // BLOCK)
    return EngineConfig(blocks, BLOCK, batch, max(512, batch * PROMPT), enable_prefix_caching=False)


def slot_steps(kind: str, lengths: Sequence[int], batch: int) -> Watch:
    """A workload on the fake model: only the plans count."""
    limits = limits_for(batch, lengths)
    engine = Engine(SCHEDULERS[kind](limits), FakeExecutor(limits.num_blocks, BLOCK))
    return run_workload(engine, [range(PROMPT)] * len(lengths), lengths)


def fit_step_time(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """`a` and `c` of the least squares line `seconds = a + c * sequences`, each size with the median of its steps.

    >>> a, c = fit_step_time([(1, 12.0), (8, 26.0), (8, 26.0)])
    >>> round(a, 9), round(c, 9)
    (10.0, 2.0)
    """
    points = sorted(by_size(steps).items())
    if len(points) < 2:
        return (points[0][1], 0.0) if points else (0.0, 0.0)
    fit = statistics.linear_regression([b for b, _ in points], [seconds for _, seconds in points])
    return fit.intercept, fit.slope


def by_size(steps: Sequence[tuple[int, float]]) -> dict[int, float]:
    """The median seconds of the steps with 1, 2 ... sequences."""
    found: dict[int, list[float]] = {}
    for sequences, seconds in steps:
        found.setdefault(sequences, []).append(seconds)
    return {sequences: statistics.median(times) for sequences, times in found.items()}


class Law:
    """The part `static`: slot-steps for several batch sizes, then seconds on the model for one of them."""

    name = "static"

    def __init__(self, bench: RoomBench, sizes: Sizes, seed: int) -> None:
        """Nothing runs yet."""
        self.bench, self.sizes, self.seed = bench, sizes, seed
        self.slots: dict[tuple[str, int], dict[str, Watch]] = {}
        self.timed: dict[str, list[dict[str, Watch]]] = {}

    @property
    def ticks(self) -> int:
        """One for each workload and scheduler."""
        return 2 * (len(self.sweep()) + self.sizes.long_repeats * len(SHAPES))

    def sweep(self) -> list[tuple[str, int]]:
        """The shapes and batch sizes of the slot-steps. Fixed lengths gain nothing at any size, so one is enough."""
        return [(shape, b) for shape in SHAPES for b in SWEEP if shape != "fixed" or b == self.sizes.batch]

    def measure(self, advance: Advance) -> None:
        """Slot-steps first, which are exact; then the two schedulers in turns on the model."""
        s = self.sizes
        for shape, batch in self.sweep():
            lengths = draw_lengths(shape, self._count(batch), s.mean_length, self.seed)
            for kind in SCHEDULERS:
                advance(f"{shape}, {kind}, slot-steps, batch {batch}")
                self.slots.setdefault((shape, batch), {})[kind] = slot_steps(kind, lengths, batch)
        lengths_of = {shape: self._timed_lengths(shape) for shape in SHAPES}
        longest = max(max(lengths) for lengths in lengths_of.values())
        limits = limits_for(s.batch, [longest])
        store = self.bench.ops.new_store(limits.num_blocks, BLOCK)
        self.bench.run(Job(n_gen=8, batch=s.batch), warm_up=True)
        for _ in range(s.long_repeats):
            for shape in SHAPES:
                pair: dict[str, Watch] = {}
                for kind in SCHEDULERS:
                    advance(f"{shape}, {kind}, seconds")
                    pair[kind] = self._run_timed(kind, lengths_of[shape], limits, store)
                self.timed.setdefault(shape, []).append(pair)

    def _count(self, batch: int) -> int:
        """Enough requests for the means to settle: at least 256, and at the batch of the mark all of them."""
        return self.sizes.requests if batch >= self.sizes.batch else max(256, self.sizes.requests // 8)

    def _timed_lengths(self, shape: str) -> list[int]:
        s = self.sizes
        most = self.bench.config.max_position_embeddings - PROMPT
        return [min(n, most) for n in draw_lengths(shape, s.timed_requests, s.timed_mean_length, self.seed)]

    def _run_timed(self, kind: str, lengths: Sequence[int], limits: EngineConfig, store: KVStore) -> Watch:
        bench = self.bench
        executor = ModelExecutor(bench.weights, store, bench.ops, bench.device)
        rng = random.Random(self.seed)
        prompts = [[rng.randrange(bench.config.vocab_size) for _ in range(PROMPT)] for _ in lengths]
        return run_workload(Engine(SCHEDULERS[kind](limits), executor), prompts, lengths)

    # ---- what came out -----------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Gains: static over continuous."""
        return [*self._slot_rows(), *self._time_rows()]

    def _slot_rows(self) -> Iterator[Row]:
        for (shape, batch), pair in self.slots.items():
            if len(pair) < len(SCHEDULERS):
                continue
            gain, right = pair["static"].slot_steps / pair["continuous"].slot_steps, law(shape, batch)
            marked = batch == self.sizes.batch
            details = {"shape": shape, "batch": batch, "requests": self._count(batch), "measured_in": "slot-steps"}
            details |= {"mean_length": self.sizes.mean_length} | {
                f"{k}_slot_steps": w.slot_steps for k, w in pair.items()
            }
            mark, met = (f"within {100 * NEAR:g} % of the law", abs(gain / right - 1) <= NEAR) if marked else ("", None)
            yield Row(self.name, f"{shape}, batch {batch}, slot-steps", "x", (gain,), right, mark, met, details)

    def _time_rows(self) -> Iterator[Row]:
        for shape, pairs in self.timed.items():
            gains = tuple(pair["static"].seconds / pair["continuous"].seconds for pair in pairs)
            seconds = {f"{kind}_s": [pair[kind].seconds for pair in pairs] for kind in SCHEDULERS}
            steps = {f"{kind}_steps": len(pairs[0][kind].steps) for kind in SCHEDULERS}
            a, c = self.step_time()
            details = {
                "shape": shape,
                "batch": self.sizes.batch,
                "requests": self.sizes.timed_requests,
                "mean_length": self.sizes.timed_mean_length,
                "measured_in": "seconds",
                "expected": self.expected(shape),
                "gain_in_slot_steps": pairs[0]["static"].slot_steps / pairs[0]["continuous"].slot_steps,
                "step_s": {"once": a, "per_sequence": c, "by_sequences": by_size(self.timed_steps())},
            }
            test = f"{shape}, batch {self.sizes.batch}, seconds"
            yield Row(self.name, test, "x", gains, law(shape, self.sizes.batch), details=details | seconds | steps)

    def timed_steps(self) -> list[tuple[int, float]]:
        """Sequences and seconds of all steps."""
        watches = [watch for pairs in self.timed.values() for pair in pairs for watch in pair.values()]
        return [(n, seconds) for watch in watches for _, n, seconds in watch.steps]

    def step_time(self) -> tuple[float, float]:
        """`a` and `c`: the seconds of a step, and of each sequence in it."""
        return fit_step_time(self.timed_steps())

    def expected(self, shape: str) -> float:
        """The gain in time that `a + c b` predicts from the number of steps."""
        pair, (a, c) = self.timed[shape][0], self.step_time()
        static, continuous = (a * len(pair[k].steps) + c * pair[k].sequence_steps for k in ("static", "continuous"))
        return static / continuous if continuous else 1.0

    def words(self) -> list[str]:
        """Why the gain in seconds is not the gain in slot-steps."""
        if not self.timed:
            return []
        (a, c), batch = self.step_time(), self.sizes.batch
        last = list(self.timed)[-1]
        pair = self.timed[last][0]
        steps = {kind: len(watch.steps) for kind, watch in pair.items()}
        own = pair["static"].slot_steps / pair["continuous"].slot_steps
        return [
            f"A decode step takes {1e3 * a:.3g} ms + {1e3 * c:.3g} ms for each sequence. Empty seats are not computed: "
            f"one makes a step of {batch} {100 * c / (a + batch * c):.0f} % cheaper, where the law counts it in full.",
            f"With {last} lengths the {self.sizes.timed_requests} timed requests take {steps['static']} static steps "
            f"and {steps['continuous']} continuous ones, and {own:.3g} x the slot-steps; by that formula "
            f"{self.expected(last):.3g} x the time.",
            "The law is what hardware gains on which a step costs the same however full it is: where reading the "
            "weights outweighs the rest, or where empty seats are computed as padding.",
        ]

"""What the cache and the scheduler cost and save: prefix hits, chunks, pages, and the decisions themselves.

Each class answers one question of `minifer bench batching`. Whatever is compared takes turns, so that what slows the
machine for a while slows all of it; ratios are taken within a turn.
"""

import io
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from minifer.apps.bench_batching_rows import BLOCK, Advance, Row, Sizes, number
from minifer.engine import Engine
from minifer.errors import CapacityError, InvariantError
from minifer.executor import ModelExecutor
from minifer.kv_cache.pool import BlockPool
from minifer.kv_cache.store import KVStore
from minifer.limits import EngineConfig
from minifer.metrics import from_request
from minifer.model.transformer import forward
from minifer.ops.batch import Batch, make_batch
from minifer.roofline.speed import Job, RoomBench
from minifer.sampling_params import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import SeqResult, StepPlan, StepResult, TokenEvent
from minifer.scheduler.request import Request
from minifer.trace import TraceWriter

PREFIX_MARGIN, CHUNK_MARGIN = 0.15, 0.20
FRESH_SHARE, SHUFFLED_SHARE = 0.90, 0.50
SCHEDULER_US, TRACE_SHARE = 10.0, 0.03
STREAM_PROMPT, STREAM_WARM_UP = 16, 12


def ask(name: str, prompt: Sequence[int], max_tokens: int, arrival: float = 0.0) -> Request:
    """A greedy request for exactly `max_tokens` tokens."""
    return Request(name, tuple(prompt), SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True), arrival)


def engine_on(bench: RoomBench, store: KVStore, limits: EngineConfig) -> Engine:
    """A new engine on a model and a cache that are there already."""
    return Engine(ContinuousScheduler(limits), ModelExecutor(bench.weights, store, bench.ops, bench.device))


def filled_store(bench: RoomBench, num_blocks: int, block_size: int) -> KVStore:
    """A cache that holds a constant: reading it takes as long as reading a real past."""
    store = bench.ops.new_store(num_blocks, block_size)
    for layer in range(bench.config.num_hidden_layers):
        store.k(layer)[...] = store.v(layer)[...] = 0.01
    return store


def seconds_of(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def blocks_of(tokens: int) -> int:
    """Blocks for so many tokens."""
    return -(-tokens // BLOCK)


class Prefix:
    """A prompt whose beginning is cached, beside the forward pass of its new tokens alone, and beside a cold prompt."""

    name = "prefix"

    def __init__(self, bench: RoomBench, sizes: Sizes, seed: int) -> None:
        """Nothing runs yet."""
        self.bench, self.repeats, self.rng = bench, sizes.repeats, random.Random(seed)
        room = bench.config.max_position_embeddings - 1
        self.shared = min(sizes.shared, room * 8 // 9 // BLOCK * BLOCK)
        self.new = min(sizes.new, room - self.shared)
        self.hit: list[float] = []
        self.bare: list[float] = []
        self.cold: list[float] = []

    @property
    def ticks(self) -> int:
        """One for each turn."""
        return self.repeats + 1

    def measure(self, advance: Advance) -> None:
        """Take turns: hit, bare forward pass, cold prompt. The first turn warms up."""
        length = self.shared + self.new
        limits = EngineConfig(8 * blocks_of(length + 1), BLOCK, 1, length, length + 1)
        engine = engine_on(self.bench, self.bench.ops.new_store(limits.num_blocks, BLOCK), limits)
        bare = self._bare_call(filled_store(self.bench, 1, length))
        shared = self._ids(self.shared)
        self._ttft(engine, shared + self._ids(1), cached=0)  # from now on it is in the cache
        for turn in range(self.repeats + 1):
            advance("prefix hit, forward pass, cold prompt")
            hit = self._ttft(engine, shared + self._ids(self.new), cached=self.shared)
            times = hit, seconds_of(bare), self._ttft(engine, self._ids(length), cached=0)
            if turn:
                for samples, seconds in zip((self.hit, self.bare, self.cold), times, strict=True):
                    samples.append(seconds)

    def _ids(self, count: int) -> list[int]:
        return [self.rng.randrange(self.bench.config.vocab_size) for _ in range(count)]

    def _bare_call(self, store: KVStore) -> Callable[[], Any]:
        """`new` tokens on a context of `shared`: the forward pass and nothing else."""
        bench = self.bench
        batch = make_batch([(self._ids(self.new), self.shared, (0,))], store.block_size, xp=bench.device.xp)

        def call() -> None:
            forward(bench.weights, batch, store, bench.ops)
            bench.device.synchronize()

        return call

    @staticmethod
    def _ttft(engine: Engine, prompt: list[int], cached: int) -> float:
        """The time to first token, and a check that the cache did what is being measured."""
        request = ask("r", prompt, 1, engine.clock.now())
        engine.add(request)
        engine.run()
        ttft = from_request(request).ttft
        if request.num_cached != cached or ttft is None:
            raise InvariantError(f"{request.num_cached} tokens were found in the cache, not {cached}: {request.error}")
        return ttft

    def rows(self) -> list[Row]:
        """TTFT of a hit over the time of the bare forward pass; and what the hit saves."""
        if not self.cold:
            return []
        ratios = tuple(hit / bare for hit, bare in zip(self.hit, self.bare, strict=False))
        saved = tuple(cold / hit for cold, hit in zip(self.cold, self.hit, strict=False))
        details = {"shared": self.shared, "new": self.new}
        times = {"hit_s": self.hit, "forward_s": self.bare, "cold_s": self.cold}
        mark, met = f"at most {1 + PREFIX_MARGIN:g}", statistics.median(ratios) <= 1 + PREFIX_MARGIN
        name = f"{self.shared} cached + {self.new} new"
        return [
            Row(self.name, f"{name}: TTFT / forward pass", "x", ratios, 1.0, mark, met, details | times),
            Row(self.name, f"{name}: cold TTFT / TTFT", "x", saved, details=details),
        ]

    def words(self) -> list[str]:
        """The three times."""
        if not self.cold:
            return []
        hit, bare, cold = (1e3 * statistics.median(samples) for samples in (self.hit, self.bare, self.cold))
        return [
            f"With {self.shared} tokens cached, {self.new} new ones take {hit:.4g} ms to the first token (their "
            f"forward pass alone: {bare:.4g} ms); without the cache, {cold:.4g} ms."
        ]


class Chunk:
    """Streams that decode while a long prompt comes in: how long the worst gap between two tokens gets."""

    name = "chunk"

    def __init__(self, bench: RoomBench, sizes: Sizes, seed: int) -> None:
        """Nothing runs yet."""
        self.bench, self.streams, self.repeats = bench, sizes.streams, sizes.long_repeats
        self.prompt = min(sizes.long_prompt, bench.config.max_position_embeddings // 2)
        self.chunks = sorted({min(chunk, self.prompt) for chunk in sizes.chunks})
        rng = random.Random(seed)
        self.ids = [rng.randrange(bench.config.vocab_size) for _ in range(self.prompt)]
        self.samples: dict[int, list[dict[str, float]]] = {}

    @property
    def ticks(self) -> int:
        """One for each chunk size and turn."""
        return self.repeats * len(self.chunks)

    def measure(self, advance: Advance) -> None:
        """All chunk sizes in turns; beside each, its last and dearest chunk alone."""
        alone = filled_store(self.bench, 1, self.prompt)
        life = STREAM_PROMPT + STREAM_WARM_UP + self.prompt // self.chunks[0] + 8
        blocks = self.streams * blocks_of(life) + blocks_of(self.prompt + 1)
        store = self.bench.ops.new_store(blocks, BLOCK)
        for _ in range(self.repeats):
            for chunk in self.chunks:
                advance(f"{self.streams} streams beside {self.prompt} tokens in chunks of {chunk}")
                limits = EngineConfig(
                    blocks, BLOCK, self.streams + 1, chunk + self.streams, enable_prefix_caching=False
                )
                found = self._beside(engine_on(self.bench, store, limits), life - STREAM_PROMPT)
                found["chunk"] = self._alone(chunk, alone)
                self.samples.setdefault(chunk, []).append(found)

    def _beside(self, engine: Engine, most: int) -> dict[str, float]:
        """The streams' median gap before the prompt comes, their worst one until its first token, and its TTFT."""
        streams = [ask(f"stream{i}", self.ids[:STREAM_PROMPT], most) for i in range(self.streams)]
        for stream in streams:
            engine.add(stream)
        for _ in range(STREAM_WARM_UP):
            engine.step()
        before = [gap for stream in streams for gap in from_request(stream).itl[2:]]
        long = ask("long", self.ids, 1, engine.clock.now())
        engine.add(long)
        known = len(streams[0].token_times)
        while long.finished is None:
            engine.step()
        gaps = [gap for stream in streams for gap in from_request(stream).itl[known - 1 :]]
        for stream in streams:
            engine.abort(stream.id)
        ttft = from_request(long).ttft
        assert ttft is not None
        return {"decode": statistics.median(before), "worst": max(gaps), "ttft": ttft}

    def _alone(self, chunk: int, store: KVStore) -> float:
        """The seconds of the prompt's last chunk, with nobody beside it."""
        bench, start = self.bench, self.prompt - chunk
        batch = make_batch([(self.ids[start:], start, (0,))], store.block_size, xp=bench.device.xp)

        def call() -> None:
            forward(bench.weights, batch, store, bench.ops)
            bench.device.synchronize()

        return seconds_of(call)

    def rows(self) -> list[Row]:
        """The worst gap over decode step + chunk, for each chunk size; and what the long prompt waits for it."""
        found = []
        for chunk, samples in self.samples.items():
            ratios = tuple(s["worst"] / (s["decode"] + s["chunk"]) for s in samples)
            times = {f"{name}_s": [s[name] for s in samples] for name in ("decode", "worst", "chunk", "ttft")}
            details = {"chunk": chunk, "streams": self.streams, "prompt": self.prompt, **times}
            mark, met = f"at most {1 + CHUNK_MARGIN:g}", statistics.median(ratios) <= 1 + CHUNK_MARGIN
            test = f"chunk {chunk}: worst ITL / (decode step + chunk)"
            found.append(Row(self.name, test, "x", ratios, 1.0, mark, met, details))
            ms = tuple(1e3 * s["worst"] for s in samples)
            found.append(Row(self.name, f"chunk {chunk}: worst ITL", "ms", ms, details={"chunk": chunk}))
            ms = tuple(1e3 * s["ttft"] for s in samples)
            found.append(Row(self.name, f"chunk {chunk}: TTFT of the long prompt", "ms", ms, details={"chunk": chunk}))
        return found

    def words(self) -> list[str]:
        """The trade."""
        if not self.samples:
            return []
        small, large = min(self.samples), max(self.samples)
        worst, ttft = ({c: statistics.median(s[name] for s in self.samples[c]) for c in (small, large)}
                       for name in ("worst", "ttft"))  # fmt: skip
        return [
            f"In chunks of {small} instead of {large} the streams wait {number(1e3 * worst[small])} ms at worst and "
            f"not {number(1e3 * worst[large])} ms; the long prompt pays with {ttft[small] / ttft[large]:.2f} x its "
            f"time to first token."
        ]


class Paged:
    """A decode step on a contiguous cache, on the blocks of a fresh pool, and on blocks in random order."""

    name = "paged"

    def __init__(self, bench: RoomBench, sizes: Sizes, seed: int) -> None:
        """Nothing runs yet."""
        self.bench, self.batch, self.repeats, self.steps = bench, sizes.batch, sizes.repeats, sizes.decode_steps
        self.context = min(sizes.context, bench.config.max_position_embeddings) // BLOCK * BLOCK
        self.rng = random.Random(seed)
        self.samples: dict[str, list[float]] = {}
        self.adjacent = 0.0

    @property
    def ticks(self) -> int:
        """One for each turn."""
        return self.repeats + 1

    def measure(self, advance: Advance) -> None:
        """Contiguous, fresh, shuffled, contiguous: the mean of the two outer ones counts. The first turn warms up."""
        self._check_memory()
        per_sequence = self.context // BLOCK
        contiguous = filled_store(self.bench, self.batch, self.context)
        paged = filled_store(self.bench, self.batch * per_sequence, BLOCK)
        pool = BlockPool(self.batch * per_sequence, BLOCK)
        fresh = [pool.allocate(per_sequence) for _ in range(self.batch)]
        self.adjacent = pool.adjacent / pool.allocated
        places = self.rng.sample(range(self.batch * per_sequence), self.batch * per_sequence)
        shuffled = [tuple(places[i :: self.batch]) for i in range(self.batch)]
        calls = {
            "contiguous": self._decode(contiguous, [(i,) for i in range(self.batch)]),
            "fresh": self._decode(paged, fresh),
            "shuffled": self._decode(paged, shuffled),
        }
        for turn in range(self.repeats + 1):
            advance("decode on contiguous, fresh and shuffled blocks")
            times = {name: seconds_of(call) for name, call in calls.items()}
            times["contiguous"] = (times["contiguous"] + seconds_of(calls["contiguous"])) / 2
            for name in times if turn else ():
                self.samples.setdefault(name, []).append(times[name])

    def _check_memory(self) -> None:
        from minifer.apps.doctor import memory

        needed = 2 * self.batch * self.context * self.bench.config.kv_bytes_per_token
        available = memory()["available_bytes"]
        if needed > available / 2:
            raise CapacityError(
                f"two caches of {self.batch} x {self.context} tokens need {needed / 1e9:.1f} GB, and "
                f"{available / 1e9:.1f} GB of memory are available: leave `paged` out with --only"
            )

    def _decode(self, store: KVStore, tables: Sequence[Sequence[int]]) -> Callable[[], None]:
        """A few decode steps, each at the last position of the context."""
        bench = self.bench
        sequences = [([7 * i + 1], self.context - 1, table) for i, table in enumerate(tables)]
        batch: Batch = make_batch(sequences, store.block_size, xp=bench.device.xp)

        def call() -> None:
            for _ in range(self.steps):
                forward(bench.weights, batch, store, bench.ops)
            bench.device.synchronize()

        return call

    def rows(self) -> list[Row]:
        """Shares of the contiguous cache's speed; tokens per second as llama-bench names them."""
        found, base = [], self.samples.get("contiguous", [])
        marks = {"fresh": FRESH_SHARE, "shuffled": SHUFFLED_SHARE}
        for name, seconds in self.samples.items():
            rates = [self.batch * self.steps / s for s in seconds]
            deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
            details = {"batch": self.batch, "context": self.context, "block_size": BLOCK, "samples_ts": rates}
            details |= {"avg_ts": statistics.fmean(rates), "stddev_ts": deviation}
            test = f"{name}, batch {self.batch} at {self.context}"
            found.append(Row(self.name, test, "tok/s", tuple(rates), details=details))
            if name in marks:
                shares = tuple(b / s for b, s in zip(base, seconds, strict=False))
                mark, met = f"at least {marks[name]:g}", statistics.median(shares) >= marks[name]
                found.append(Row(self.name, f"{name} / contiguous", "x", shares, 1.0, mark, met, details))
        return found

    def words(self) -> list[str]:
        """What a table's order is worth."""
        if not self.samples:
            return []
        return [
            f"A fresh pool hands out neighbours ({100 * self.adjacent:.0f} % of its blocks follow their predecessor), "
            f"so that attention reads long runs; shuffled blocks of {BLOCK} tokens have to be gathered first."
        ]


class Alone:
    """The scheduler with nothing to run: microseconds per sequence and step; and those of writing a trace."""

    name = "scheduler"

    def __init__(self, bench: RoomBench, sizes: Sizes, seed: int) -> None:
        """Nothing runs yet."""
        self.bench, self.sizes, self.seed = bench, sizes, seed
        self.samples: dict[tuple[int, int], list[float]] = {}
        self.trace: list[float] = []
        self.step: list[float] = []

    def cases(self) -> list[tuple[int, int]]:
        """Batch size and length of the queue."""
        return [(b, 0) for b in self.sizes.scheduler_batches] + [(self.sizes.batch, self.sizes.queue)]

    @property
    def ticks(self) -> int:
        """One for each case and turn."""
        return self.sizes.repeats * (len(self.cases()) + 1)

    def measure(self, advance: Advance) -> None:
        """All cases in turns, then a decode step of the model, which they are a share of."""
        batch, job = self.sizes.batch, Job(n_gen=8, n_depth=64, batch=self.sizes.batch)
        self.bench.run(job, warm_up=True)
        for _ in range(self.sizes.repeats):
            for case in self.cases():
                advance(f"scheduler, batch {case[0]}, {case[1]} waiting")
                decide, write = self._run(*case)
                self.samples.setdefault(case, []).append(1e6 * decide)
                if case == (batch, 0):
                    self.trace.append(1e6 * write)
            advance("a decode step of the model")
            self.step.append(self.bench.run(job) / job.n_gen)

    def _run(self, batch: int, waiting: int) -> tuple[float, float]:
        """Seconds per sequence and step: of deciding and noting down, and of writing the trace."""
        steps = max(8, self.sizes.scheduler_steps // batch)
        blocks = batch * blocks_of(STREAM_PROMPT + steps + 8)
        scheduler = ContinuousScheduler(EngineConfig(blocks, BLOCK, batch, max(512, batch * STREAM_PROMPT)))
        for place in range(batch + waiting):
            scheduler.add(ask(f"r{place}", range(STREAM_PROMPT), steps + 8))
        result = StepResult(tuple(SeqResult(f"r{place}", 7, 0.0) for place in range(batch)))
        done: list[tuple[StepPlan, list[TokenEvent], float]] = []

        def step() -> None:
            plan = scheduler.step(0.0)
            done.append((plan, scheduler.commit(plan, result, 0.0), 0.0))

        def decide() -> None:
            for _ in range(steps):
                step()

        def write() -> None:
            for plan, events, now in done:
                trace.stepped(plan, events, now)

        step()
        trace = TraceWriter(io.StringIO())
        return seconds_of(decide) / steps / batch, seconds_of(write) / len(done) / batch

    def rows(self) -> list[Row]:
        """Microseconds per sequence and step; the trace also as a share of a decode step."""
        found = []
        for (batch, waiting), samples in self.samples.items():
            met = statistics.median(samples) <= SCHEDULER_US
            details: dict[str, Any] = {"batch": batch, "waiting": waiting}
            test = f"deciding, batch {batch}" + (f", {waiting} waiting" if waiting else "")
            found.append(Row(self.name, test, "us", tuple(samples), None, f"at most {SCHEDULER_US:g}", met, details))
        if self.trace and self.step:
            batch = self.sizes.batch
            shares = tuple(100 * us * batch / 1e6 / step for us, step in zip(self.trace, self.step, strict=False))
            details = {"batch": batch, "trace_us": self.trace, "decode_step_s": self.step}
            mark, met = f"at most {100 * TRACE_SHARE:g} %", statistics.median(shares) <= 100 * TRACE_SHARE
            found.append(Row(self.name, f"trace, batch {batch}", "us", tuple(self.trace), details={"batch": batch}))
            found.append(Row(self.name, f"trace / decode step, batch {batch}", "%", shares, None, mark, met, details))
        return found

    def words(self) -> list[str]:
        """How much of a step that is."""
        key = (self.sizes.batch, 0)
        if not self.step or key not in self.samples:
            return []
        us, step = statistics.median(self.samples[key]) * key[0], statistics.median(self.step)
        return [
            f"All decisions of a step with {key[0]} sequences take {us:.3g} us, {us / 1e4 / step:.2g} % of the model's "
            f"{1e3 * step:.3g} ms."
        ]

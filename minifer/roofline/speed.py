"""How many tokens per second a model makes in a room: one *job*, run again and again, against what it had to do.

A job is what llama-bench calls a test: `pp512` computes a prompt of 512 tokens, `tg128` generates 128 tokens one step
at a time, `tg128 @ d1024` does so behind 1,024 tokens that are in the cache already, `tg128 b8` for eight sequences in
one step. As there, the tokens are drawn at random and none is sampled: what is timed is the forward pass, with all the
Python around it.

What a job has to do follows from the configuration: its FLOPs, and the bytes that cannot be avoided, the weights once
per step and the KV cache. Activations are left out of the bytes, since they stay in the processor's caches where an
engine is well made; `model/cost.py` counts them too.

Not here: rows, tables and peers (`apps/bench_micro.py`), where the time went (`profile.py`).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from minifer import ops as rooms
from minifer.device import select_device
from minifer.errors import UsageError
from minifer.kv_cache.store import KVStore
from minifer.model.config import ModelConfig
from minifer.model.cost import Work, step_cost
from minifer.model.load import Model
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch
from minifer.roofline.probes import Ceilings

UBATCH = 512
"""Most tokens of a prompt in one step, as in the engine and in llama.cpp."""

WARM_UP_STEPS = 4
"""Decode steps before the clock starts: the weights are in memory then, the buffers made, the processor awake."""


@dataclass(frozen=True)
class Job:
    """Either `n_prompt` tokens of a prompt or `n_gen` generated ones, behind `n_depth` tokens that are in the cache
    already, for `batch` sequences at once."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        if (self.n_prompt > 0) == (self.n_gen > 0) or min(self.n_prompt, self.n_gen, self.n_depth) < 0:
            raise UsageError(
                f"a test is either a prompt or generated tokens, not n_prompt={self.n_prompt} and n_gen={self.n_gen}"
            )
        if self.batch < 1:
            raise UsageError(f"a test has at least one sequence, not {self.batch}")

    @property
    def name(self) -> str:
        """llama-bench's name for it.

        >>> Job(n_prompt=512).name, Job(n_gen=128, n_depth=1024).name, Job(n_gen=128, batch=8).name
        ('pp512', 'tg128 @ d1024', 'tg128 b8')
        """
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return name + (f" b{self.batch}" if self.batch > 1 else "") + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def tokens(self) -> int:
        """How many tokens it makes, all sequences together."""
        return self.batch * (self.n_prompt + self.n_gen)

    @property
    def length(self) -> int:
        """How long each sequence is at its end."""
        return self.n_depth + self.n_prompt + self.n_gen

    def steps(self, ubatch: int = UBATCH) -> Iterator[list[Work]]:
        """The steps that it consists of.

        >>> [[(w.length, w.context) for w in step] for step in Job(n_prompt=5).steps(ubatch=3)]
        [[(3, 3)], [(2, 5)]]
        """
        size = ubatch if self.n_prompt else 1
        for start in range(self.n_depth, self.length, size):
            stop = min(start + size, self.length)
            yield [Work(stop - start, stop)] * self.batch


@dataclass(frozen=True)
class Load:
    """What a job has to do at least: FLOPs, and bytes of weights and KV cache that are read."""

    flops: float
    bytes: float
    least_s: float
    """The sum over its steps of the longer of the two times, under the ceilings given."""


def load_of(
    config: ModelConfig,
    job: Job,
    ceilings: Ceilings,
    *,
    ubatch: int = UBATCH,
    kv_width: int = 4,
    weight_width: float = 4,
) -> Load:
    """The load of a job on an engine whose weights and cache have these many bytes per number."""
    flops = least = traffic = 0.0
    for step in job.steps(ubatch):
        step_flops = sum(cost.flops for cost in step_cost(config, step).values())
        step_bytes = necessary_bytes(config, step, kv_width=kv_width, weight_width=weight_width)
        flops, traffic = flops + step_flops, traffic + step_bytes
        least += ceilings.least_seconds(step_flops, step_bytes)
    return Load(flops, traffic, least)


def necessary_bytes(config: ModelConfig, step: Sequence[Work], *, kv_width: int = 4, weight_width: float = 4) -> float:
    """Bytes of one step without activations: each matrix once (a tied embedding once, an untied one not at all),
    and for each sequence the keys and values that its tokens see."""
    weights = sum(
        cost.bytes for cost in step_cost(config, step, weight_bytes=weight_width, activation_bytes=0).values()
    )
    seen = sum(min(w.context, config.window() + w.length - 1) for w in step)
    return weights + seen * config.kv_bytes_per_token / 4 * kv_width


class RoomBench:
    """A model in a room, ready to run jobs. Close it: a room may hold processes.

    `threads` is how many the room may use, its own or those of the BLAS library.
    """

    def __init__(self, model: Model, room: str, threads: int, *, ubatch: int = UBATCH) -> None:
        """Open the room and hand it the weights. Raises the errors of `open_room`."""
        self.config, self.room, self.threads, self.ubatch = model.config, room, threads, ubatch
        self.device = select_device("cpu")
        options: dict[str, Any] = {"threads": threads} if room == "cpu" else {}
        self.ops = rooms.open_room(room, model.config, self.device, **options)
        self.ranks: int = getattr(self.ops, "num_ranks", 1)
        self.weights = self.ops.prepare(model.weights)
        self._store: KVStore | None = None
        self._ready: tuple[int, int, int] | None = None
        self._ids = np.random.default_rng(0).integers(0, self.config.vocab_size, 1 << 14).tolist()

    def close(self) -> None:
        """End the room."""
        self._store = None
        self.ops.close()

    def run(self, job: Job, *, warm_up: bool = False) -> float:
        """The seconds that a job takes; what comes before it (the cache at its depth) is not in them.

        Warming up runs a prompt whole, and `WARM_UP_STEPS` of a generation.
        """
        steps = list(job.steps(self.ubatch))
        if warm_up and job.n_gen:
            steps = steps[:WARM_UP_STEPS]
        with self.blas_threads():
            self.make_ready(job)
            start = time.perf_counter()
            for step in steps:
                self.step(step)
            self.device.synchronize()
            return time.perf_counter() - start

    def blas_threads(self) -> Any:
        """The number of BLAS threads that this room computes with in this process, while the context lasts."""
        return threadpool_limits(1 if self.ranks > 1 else self.threads, "blas")

    def make_ready(self, job: Job) -> None:
        """A cache of the job's size, filled to its depth: computed for the first sequence, copied to the others.

        The next job of the same kind finds it ready: what it writes lies behind that depth.
        """
        kind = (job.length, job.batch, job.n_depth)
        if kind == self._ready:
            return
        self._ready = self._store = None
        store = self._store = self.ops.new_store(job.batch, job.length)
        for start in range(0, job.n_depth, self.ubatch):
            stop = min(start + self.ubatch, job.n_depth)
            self.step([Work(stop - start, stop)])
        store.copy_blocks([(0, i) for i in range(1, job.batch)] if job.n_depth else [])
        self._ready = kind

    def step(self, work: Sequence[Work]) -> Any:
        """One step: sequence i lives in block i, and its next tokens are the next random ones."""
        assert self._store is not None
        ids, size = self._ids, self._store.block_size
        sequences = []
        for i, w in enumerate(work):
            first = w.context - w.length
            at = (first + 31 * i) % (len(ids) - w.length)
            sequences.append((ids[at : at + w.length], first, (i,)))
        return forward(self.weights, make_batch(sequences, size, xp=self.device.xp), self._store, self.ops)

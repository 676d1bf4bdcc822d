"""Measure what steps take on this machine: real requests through the real engine, every step timed.

The engine's own steps are timed, so everything in them is in the figures: the scheduler, the forward pass, sampling.
The requests are chosen so that the steps differ in one thing at a time:

    decode    1 to all seats, near the start and at deep contexts     what a row, a sequence and a key cost
    prefill   prompts of many lengths, alone and behind a prefix      what a chunk and a pair cost
    mixed     a prompt that arrives while others decode               that the sum holds

`fit.py` makes a formula of them. It says what this machine did in these minutes: on a busy machine it is wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from minifer.apps.simulate.fit import Sample
from minifer.apps.simulate.steptime import features_of
from minifer.formats.atomic import Progress, no_progress
from minifer.llm import LLM
from minifer.sampling_params import SamplingParams
from minifer.scheduler.plan import StepPlan, TokenEvent
from minifer.scheduler.request import Request

CHUNKS = (2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Lengths of prompts, up to what one step may hold."""

DEPTHS = (32, 512, 1536)
"""Contexts at which decoding is timed, as far as the model's own context allows."""

BEHIND, DEEP_CHUNKS = (512, 1024), (16, 64, 256, 512)
"""Contexts before a chunk, and the chunks that are timed behind them."""

DECODE_STEPS, REPEATS, ROUNDS = 6, 2, 2
"""Everything is measured in rounds, so that a slow minute of the machine falls on all kinds of steps alike."""


class StepTimer:
    """A recorder that keeps the features and the seconds of every step that ran something."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.samples: list[Sample] = []

    def added(self, request: Request, now: float) -> None:
        """Nothing to note."""

    def stepped(self, plan: StepPlan, events: list[TokenEvent], now: float) -> None:  # noqa: ARG002
        """Note a step."""
        if plan.seqs:
            self.samples.append(Sample(features_of(plan.seqs, self.window), now - plan.time))

    def ended(self, events: list[TokenEvent]) -> None:
        """Nothing to note."""


class Calibration:
    """Runs requests on an LLM of its own, which must do nothing else meanwhile, and collects `samples`."""

    def __init__(self, llm: LLM, seed: int = 0) -> None:
        self.llm = llm
        self.timer = StepTimer(llm.config.window())
        self.rng = np.random.default_rng(seed)
        self.names = iter(range(1 << 30))

    def run(self, progress: Progress = no_progress) -> list[Sample]:
        """All measurements; about a minute for a small model."""
        before, self.llm.engine.trace = self.llm.engine.trace, self.timer
        plan = [job for _ in range(ROUNDS) for job in (*self._decodes(), *self._prefills(), *self._mixtures())]
        try:
            self._serve([self._prompt(16)], 4)  # the first steps of a process are slower
            self.timer.samples.clear()
            for done, (prompts, tokens) in enumerate(plan, 1):
                self._serve(prompts, tokens)
                progress("steps of this machine", done, len(plan))
        finally:
            self.llm.engine.trace = before
        return self.timer.samples

    def _decodes(self) -> Iterator[tuple[list[tuple[int, ...]], int]]:
        """All batch sizes at all depths: prompts that share all but their last token, so that they are soon ready."""
        seats = self.llm.limits.max_num_seqs
        sizes = sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, seats} & set(range(1, seats + 1)))
        for depth in DEPTHS:
            for size in sizes:
                if self._fits(depth + DECODE_STEPS + 2, size):
                    shared = self._prompt(depth)
                    yield [(*shared, *self._prompt(1)) for _ in range(size)], DECODE_STEPS

    def _prefills(self) -> Iterator[tuple[list[tuple[int, ...]], int]]:
        for length in CHUNKS:
            if length > self.llm.limits.max_num_batched_tokens or not self._fits(length + 1, 1):
                continue
            for _ in range(REPEATS):
                yield [self._prompt(length)], 1
            for behind in BEHIND:
                if length in DEEP_CHUNKS and self._fits(behind + length + 1, 1):
                    yield [self._prompt(behind + length)], 1

    def _mixtures(self) -> Iterator[tuple[list[tuple[int, ...]], int]]:
        """Prompts of different lengths at once: the short ones decode while the long ones are still being read."""
        seats, step = self.llm.limits.max_num_seqs, self.llm.limits.max_num_batched_tokens
        for lengths in ((24, 2 * step), (24, 40, 3 * step), tuple(range(8, 8 + 16 * seats, 16))):
            fitting = [n for n in lengths[:seats] if self._fits(n + 12, 1)]
            for _ in range(REPEATS):
                yield [self._prompt(n) for n in fitting], 10

    def _fits(self, tokens: int, sequences: int) -> bool:
        limits = self.llm.limits
        longest = limits.max_model_len or limits.capacity
        return tokens <= longest and sequences * -(-tokens // limits.block_size) <= limits.num_blocks

    def _prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self.rng.integers(0, self.llm.vocab_size, length).tolist())

    def _serve(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> None:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, seed=0)
        for prompt in prompts:
            self.llm.engine.add(Request(f"calibration-{next(self.names)}", prompt, replace(params)))
        self.llm.engine.run()

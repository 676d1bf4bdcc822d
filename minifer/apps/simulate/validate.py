"""Is the simulation right? Three workloads, run for real and simulated, figure beside figure.

    steady     prompts of many lengths at even gaps, well below what the machine can do
    bursty     the same rate in bursts (gaps from a Gamma distribution of burstiness 0.25): queues come and go
    prefixes   few long prefixes shared by many requests: the prefix cache decides

The step times are measured first (calibrate.py), on the same engine. A queue multiplies errors: near saturation a
machine that is 5 % slower waits twice as long. So the rates are chosen from what was measured, at `LOADS` of the
machine's limit. An error above `BOUND` is said, with the workload and the metric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minifer.apps.simulate.calibrate import Calibration, StepTimer
from minifer.apps.simulate.fit import Sample, fit
from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.real import run_real
from minifer.apps.simulate.steptime import FittedTime, StepTime, seconds_per_request
from minifer.apps.simulate.tally import Tally
from minifer.apps.workloads import Arrival, make_workload
from minifer.formats.atomic import Progress, no_progress
from minifer.limits import EngineConfig
from minifer.llm import LLM
from minifer.scheduler.continuous import ContinuousScheduler

BOUND = 0.10
"""The error of a figure that is remarked upon."""

COMPARED = ("p50_ttft_ms", "p90_ttft_ms", "p50_tpot_ms", "p90_tpot_ms", "output_throughput")

LOADS = {"steady": 0.5, "bursty": 0.35, "prefixes": 0.45}
"""Requests per second as a share of what the machine could serve with all seats taken."""


@dataclass(frozen=True)
class Comparison:
    """One workload, run for real and simulated: both in vLLM's keys."""

    workload: str
    real: dict[str, Any]
    simulated: dict[str, Any]
    steps_error: float = 0.0
    """All steps of the real run as the formula has them, over what they took, minus 1: what is not queueing."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per compared figure; `error` is simulated over real minus 1, None where either is undefined."""
        for name in COMPARED:
            real, simulated = self.real[name], self.simulated[name]
            error = simulated / real - 1 if real and simulated is not None else None
            yield {"workload": self.workload, "figure": name, "real": real, "simulated": simulated, "error": error}


def workloads(llm: LLM, time: StepTime, requests: int, seed: int) -> dict[str, list[Arrival]]:
    """The three workloads, at rates that suit the machine."""
    lengths: dict[str, Any] = {"random_input_len": 192, "random_output_len": 48, "random_range_ratio": 0.6}
    prefixes: dict[str, Any] = {
        "prefix_repetition_prefix_len": 256,
        "prefix_repetition_suffix_len": 64,
        "prefix_repetition_num_prefixes": 4,
        "prefix_repetition_output_len": 48,
    }
    limit = 1 / seconds_per_request(time, 192, 48, llm.limits.max_num_seqs)
    limit_shared = 1 / seconds_per_request(time, 80, 48, llm.limits.max_num_seqs)
    kinds: dict[str, tuple[str, float, float, dict[str, Any]]] = {
        "steady": ("random", limit, float("inf"), lengths),
        "bursty": ("random", limit, 0.25, lengths),
        "prefixes": ("prefix_repetition", limit_shared, 1.0, prefixes),
    }
    return {
        name: make_workload(
            dataset, num_prompts=requests, seed=f"{seed} {name}", vocab_size=llm.vocab_size,
            request_rate=LOADS[name] * most, burstiness=burstiness, **sizes,
        )
        for name, (dataset, most, burstiness, sizes) in kinds.items()
    }  # fmt: skip


def forget(llm: LLM) -> None:
    """An empty cache, as the simulation begins with: what an earlier run left in it would be found again."""
    llm.engine.scheduler = ContinuousScheduler(llm.limits)


def steps_error(samples: Sequence[Sample], time: StepTime) -> float:
    """By how much the formula is off over all steps of a run together."""
    return sum(time.seconds(s.features) for s in samples) / sum(s.seconds for s in samples) - 1


def simulate(config: EngineConfig, window: int, time: StepTime, arrivals: Sequence[Arrival]) -> Tally:
    """One replica with this engine and these step times."""
    return Fleet(lambda _: Replica(config, time, window), 1).run(arrivals)


def validate(
    llm: LLM,
    *,
    requests: int = 48,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[list[Comparison], FittedTime, list[Sample]]:
    """Calibrate, then run and simulate each workload. About three minutes for a small model.

    The steps of the real runs are not used for the fit: what is validated was not fitted.
    """
    samples = Calibration(llm, seed).run(progress)
    time = fit(samples, llm.config.window())
    found = []
    for name, arrivals in workloads(llm, time, requests, seed).items():
        forget(llm)
        timer = llm.engine.trace = StepTimer(llm.config.window())
        real = run_real(llm, arrivals, lambda done, name=name: progress(name, done, requests))  # type: ignore[misc]
        llm.engine.trace = None
        simulated = simulate(llm.limits, llm.config.window(), time, arrivals)
        found.append(Comparison(name, real.summary(), simulated.summary(), steps_error(timer.samples, time)))
    return found, time, samples

"""How much traffic a fleet can take while it keeps its promises: the highest rate at which enough requests do well.

From a guess (all seats taken, as many requests as that machine can do) the rate goes up or down in strides until the
answer changes, and then by halves in between: a run of the whole workload for each question. More traffic is never
better for those who wait, so the answer is the edge between kept and broken.

A short burst says nothing about a rate: two hundred requests at once may all be answered in time by a machine that
could not take two hundred a second for long. So a workload lasts `PATIENCE` times the longest promise, however many
requests that takes; an overload of a few percent then has the time to show.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.machine import Machine
from minifer.apps.simulate.steptime import seconds_per_request
from minifer.apps.workloads import Arrival
from minifer.metrics import meets

PRECISION = 0.04
"""The search ends when the edge is known to this share of the rate."""

PATIENCE = 10
"""How long a workload lasts, in promises."""

SHORTEST_S = 10.0
"""And how long at least, in seconds."""

STRIDE = 1.25
"""By how much the rate changes at first, until the edge has been passed."""

SLOWEST, FASTEST = 1e-3, 1e5
"""Requests per second between which the edge is looked for."""


@dataclass(frozen=True)
class Setting:
    """What is varied: the fleet's size and policy, and the engine's step size, block size and prefix cache."""

    policy: str = "round-robin"
    replicas: int = 1
    chunk: int = 512
    block_size: int = 16
    prefix_caching: bool = True


@dataclass(frozen=True)
class Capacity:
    """The highest rate of a setting, requests per second, and the share of requests that kept the SLO at it."""

    setting: Setting
    rate: float
    attained: float
    runs: int


Workload = Callable[[float], Sequence[Arrival]]
"""The arrivals at a rate of requests per second."""


def settings(base: Setting, choices: Mapping[str, Sequence[Any]], *, full: bool) -> Iterator[Setting]:
    """The base, then each choice alone in its place; with `full` all combinations.

    >>> [s.replicas for s in settings(Setting(), {"replicas": [1, 2]}, full=False)]
    [1, 2]
    """
    if full:
        for combination in product(*choices.values()):
            yield replace(base, **dict(zip(choices, combination, strict=True)))
        return
    seen = {base}
    yield base
    for name, values in choices.items():
        for value in values:
            setting = replace(base, **{name: value})
            if setting not in seen:
                seen.add(setting)
                yield setting


def attained(machine: Machine, setting: Setting, arrivals: Sequence[Arrival], slo_ms: Mapping[str, float]) -> float:
    """The share of all arrivals that were answered within the SLO; a refused one was not."""
    config = replace(
        machine.config,
        max_num_batched_tokens=max(setting.chunk, machine.config.max_num_seqs),
        num_blocks=max(1, machine.config.capacity // setting.block_size),
        block_size=setting.block_size,
        max_model_len=_longest(machine, setting),
        enable_prefix_caching=setting.prefix_caching,
    )
    window = machine.model.window()
    fleet = Fleet(lambda _: Replica(config, machine.time, window), setting.replicas, setting.policy)
    tally = fleet.run(arrivals)
    kept = sum(metrics.output_tokens > 0 and meets(metrics, slo_ms) for metrics in tally.finished)
    return kept / len(arrivals)


def enough(rate: float, slo_ms: Mapping[str, float], least: int) -> int:
    """How many requests make a workload that says something about `rate`, at least `least`.

    >>> enough(10.0, {"ttft": 2000.0, "tpot": 100.0}, least=200)
    200
    >>> enough(50.0, {"ttft": 2000.0}, least=200)
    1000
    """
    longest_s = max([slo_ms[name] / 1e3 for name in ("ttft", "e2el") if name in slo_ms], default=0.0)
    return max(least, math.ceil(rate * max(SHORTEST_S, PATIENCE * longest_s)))


def guess_rate(machine: Machine, setting: Setting, arrivals: Sequence[Arrival]) -> float:
    """Requests per second of machines whose seats are all taken, for prompts and answers of the average length."""
    prompt = sum(len(a.prompt_ids) for a in arrivals) // len(arrivals)
    answer = max(1, sum(a.output_len for a in arrivals) // len(arrivals))
    return setting.replicas / seconds_per_request(machine.time, prompt, answer, machine.config.max_num_seqs)


def _longest(machine: Machine, setting: Setting) -> int | None:
    longest = machine.config.max_model_len
    held = max(1, machine.config.capacity // setting.block_size) * setting.block_size
    return None if longest is None else min(longest, held)


def capacity(
    machine: Machine,
    setting: Setting,
    workload: Workload,
    slo_ms: Mapping[str, float],
    target: float,
    guess: float = 1.0,
) -> Capacity:
    """The highest rate at which at least `target` (a share) of the requests keep the SLO; 0 if none does.

    The search begins at `guess`, which decides about nothing but its length.
    """
    runs, best = 0, 0.0

    def share(rate: float) -> float:
        nonlocal runs
        runs += 1
        return attained(machine, setting, workload(rate), slo_ms)

    rate = guess
    found = share(rate)
    step = STRIDE if found >= target else 1 / STRIDE
    low = high = rate
    while (found >= target) == (step > 1) and SLOWEST < rate < FASTEST:
        low, high = (rate, rate * step) if step > 1 else (rate * step, rate)
        best = found if found >= target else best
        rate *= step
        step *= step  # in ever larger strides
        found = share(rate)
    if found >= target:
        best = found
        if step > 1:  # even the fastest is kept
            return Capacity(setting, rate, found, runs)
    elif step < 1:  # not even the slowest is
        return Capacity(setting, 0.0, 0.0, runs)
    while high > low * (1 + PRECISION):
        middle = (low * high) ** 0.5
        found = share(middle)
        if found >= target:
            low, best = middle, found
        else:
            high = middle
    return Capacity(setting, low, best, runs)

"""How much traffic a fleet can take while it keeps its promises: the highest rate at which enough requests meet the SLO.

The rate is doubled until the promise is broken and then halved in between, a run of the whole workload for each
question. More traffic is never better for those who wait, so the answer is the edge between kept and broken; with one
seed all runs of a search have the same requests in the same order, only closer together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.machine import Machine
from minifer.apps.workloads import Arrival
from minifer.metrics import meets

PRECISION = 0.03
"""The search ends when the edge is known to this share of the rate."""

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
        for values in product(*choices.values()):
            yield replace(base, **dict(zip(choices, values, strict=True)))
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


def _longest(machine: Machine, setting: Setting) -> int | None:
    longest = machine.config.max_model_len
    held = max(1, machine.config.capacity // setting.block_size) * setting.block_size
    return None if longest is None else min(longest, held)


def capacity(
    machine: Machine, setting: Setting, workload: Workload, slo_ms: Mapping[str, float], target: float
) -> Capacity:
    """The highest rate at which at least `target` (a share) of the requests keep the SLO; 0 if none does."""
    runs, best = 0, 0.0

    def share(rate: float) -> float:
        nonlocal runs
        runs += 1
        return attained(machine, setting, workload(rate), slo_ms)

    low, high = 0.0, 1.0
    found = share(high)
    while found >= target and high < FASTEST:
        low, best, high = high, found, 2 * high
        found = share(high)
    if found >= target:
        return Capacity(setting, high, found, runs)
    low = low or SLOWEST
    while high > low * (1 + PRECISION):
        middle = (low * high) ** 0.5
        found = share(middle)
        if found >= target:
            low, best = middle, found
        else:
            high = middle
    return Capacity(setting, low if best else 0.0, best, runs)

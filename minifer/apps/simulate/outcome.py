"""A workload on a fleet, from start to result: vLLM's keys, and per replica what it did."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.machine import Machine
from minifer.apps.workloads import Arrival
from minifer.errors import UsageError
from minifer.trace import TraceWriter


def simulate(
    machine: Machine,
    arrivals: Iterable[Arrival],
    *,
    replicas: int = 1,
    policy: str = "round-robin",
    slo_ms: Mapping[str, float] | None = None,
    trace: Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Simulate and sum up. With `trace`, replica 0 writes to that file, the others to FILE.1, FILE.2 ...

    The result has vLLM's keys, `replicas` (requests, steps, share of time busy, cache hits of each) and `simulation`
    (what was simulated, and how long that took).
    """
    start = time.perf_counter()
    writers = [_writer(trace, i, machine, about or {}) for i in range(replicas)] if trace else [None] * replicas
    window = machine.model.window()
    fleet = Fleet(lambda i: Replica(machine.config, machine.time, window, writers[i]), replicas, policy)
    try:
        tally = fleet.run(arrivals, progress)
    finally:
        for writer in writers:
            if writer is not None:
                writer.close()
    if not tally.finished and not tally.refused:
        raise UsageError("the workload is empty")
    simulation = {
        "machine": machine.about,
        "name": machine.name,
        "replicas": replicas,
        "policy": policy,
        "config": asdict(machine.config),
        **(about or {}),
        "wall_s": time.perf_counter() - start,
    }
    per_replica = [_row(replica, tally.duration) for replica in fleet.replicas]
    refused = [{"index": index, "why": why} for index, why in tally.refused[:10]]
    curve = cumulative(tally.finished)
    return {
        **tally.summary(dict(slo_ms or {})),
        "refused_first": refused,
        "replicas": per_replica,
        "simulation": simulation,
        "cumulative": curve,
    }


def _writer(path: Path, index: int, machine: Machine, about: Mapping[str, Any]) -> TraceWriter:
    name = path if index == 0 else path.with_name(f"{path.name}.{index}")
    known = {"simulated": True, "machine": machine.name, "replica": index, **about}
    try:
        return TraceWriter(name, asdict(machine.config), known)
    except OSError as error:
        raise UsageError(f"the trace {name} cannot be written: {error.strerror}") from error


def _row(replica: Replica, duration: float) -> dict[str, Any]:
    scheduler = replica.engine.scheduler
    return {
        "requests": scheduler.num_added,
        "steps": replica.num_steps,
        "steps_leapt": replica.num_leapt,
        "busy": replica.executor.busy_s / duration if duration else None,
        "preemptions": scheduler.num_preemptions,
        "prefix_hit_rate": scheduler.prefix_hits / scheduler.prefix_queries if scheduler.prefix_queries else None,
    }


def cumulative(finished: Iterable[Any], points: int = 101) -> dict[str, list[float | None]]:
    """Percentiles 0 to 100 of TTFT and TPOT in milliseconds, for a figure."""
    from minifer.metrics import percentile

    requests = list(finished)
    values = {
        "ttft_ms": sorted(1e3 * r.ttft for r in requests if r.ttft is not None),
        "tpot_ms": sorted(1e3 * r.tpot for r in requests if r.tpot is not None),
    }
    steps = [100 * i / (points - 1) for i in range(points)]
    return {name: [percentile(found, p) for p in steps] for name, found in values.items()}

"""Step times of this machine, measured once and kept: a calibration takes a minute, a simulation a second.

They lie in the cache folder under a name made from the model, the engine's limits and everything about the machine
that they depend on. What was measured and under which circumstances is kept with them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minifer import hub
from minifer.apps.roofline_run import conditions, machine_key
from minifer.apps.simulate.calibrate import Calibration
from minifer.apps.simulate.fit import fit, median_error
from minifer.apps.simulate.machine import Machine
from minifer.apps.simulate.steptime import Curve, FittedTime
from minifer.formats.atomic import Progress, atomic_path, no_progress
from minifer.limits import EngineConfig
from minifer.llm import LLM, limits_of
from minifer.model.config import ModelConfig

VERSION = 2


@dataclass(frozen=True)
class Stored:
    """A calibration: the formula, how far off it was, and the circumstances."""

    time: FittedTime
    median_error: float
    conditions: dict[str, Any]


def this_machine(
    model: str, config: ModelConfig, *, fresh: bool = False, progress: Progress = no_progress, **limits: Any
) -> Machine:
    """This machine as a replica of `model`. `limits` are LLM's, None where left open. Measured now if it never was."""
    given = {key: value for key, value in limits.items() if value is not None}
    engine = limits_of(config, **{"num_blocks": None, "max_model_len": None, **_defaults(), **given})
    stored = None if fresh else load(_path(model, engine))
    if stored is None:
        with LLM(model, progress=progress, **given) as llm:
            stored = calibrate(llm, progress)
        save(_path(model, engine), stored)
    about = {"machine": "here", "formula_off_by": stored.median_error, "measured": stored.conditions}
    return Machine("here", config, replace(stored.time, window=config.window()), engine, about)


def _defaults() -> dict[str, Any]:
    """LLM's own defaults of the limits."""
    made = EngineConfig(num_blocks=1 << 20)
    names = ("block_size", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill")
    return {name: getattr(made, name) for name in names}


def calibrate(llm: LLM, progress: Progress = no_progress) -> Stored:
    """Measure the steps of a loaded model."""
    samples = Calibration(llm).run(progress)
    time = fit(samples, llm.config.window())
    return Stored(time, median_error(samples, time), conditions())


def _path(model: str, engine: EngineConfig) -> Path:
    limits = (engine.max_num_seqs, engine.max_num_batched_tokens)
    key = {"version": VERSION, "model": model, "limits": limits, **machine_key(conditions())}
    return hub.kept_path("steps", key)


def save(path: Path, stored: Stored) -> None:
    """Write a calibration, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(asdict(stored), indent=1), "utf-8")


def _curve(found: Mapping[str, Any]) -> Curve:
    return Curve(tuple(found["at"]), tuple(found["seconds"]))


def load(path: Path) -> Stored | None:
    """Read a calibration; None if there is none that can be read."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        time: dict[str, Any] = {name: _curve(v) if isinstance(v, dict) else v for name, v in found["time"].items()}
        return Stored(FittedTime(**time), float(found["median_error"]), dict(found["conditions"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None

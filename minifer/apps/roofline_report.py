"""From measured times to what `roofline.json` holds: a row for each step, a point for each class of operations in it,
and in words where the gap between a point and its roof comes from.

Everything here is arithmetic on numbers that others measured, so it can be tested with numbers worked out by hand.

A point's *roof* is the lowest of three ceilings for its work: arithmetic, reading, overhead. Its *share* is the time
under that roof over the time it took. A share above 1 needs an explanation: the only honest one is that its operands
were in a cache. A point that no cache explains keeps an empty `explained`, and the report says that it cannot be right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minifer.model.config import ModelConfig
from minifer.roofline.ceilings import Machine
from minifer.roofline.measure import Measured, Step
from minifer.roofline.predict import CLASSES, OpTime, Roof, predict_step, total

LIMITS = {
    "compute": "arithmetic at full speed",
    "bandwidth": "reading at full speed",
    "overhead": "calls of Python and NumPy, whatever the work",
}
DRAWN = ("linears", "attention", "head")
ABOVE = 1.05
"""A share beyond this is more than the scatter of a measured ceiling."""

NOT_QUIET = 0.1
NEAR = 0.9
WORTH_TELLING = 0.02
HEADLINE_PROMPT = 512
MANY_ROWS = 24
"""From so many rows on the linear layers are one large product; see `ops/cpu.py`."""


@dataclass(frozen=True)
class Ground:
    """What every explanation stands on: the model, the roofs at its working set, and the machine's other ceilings.

    `shapes` are the rates of `ceilings.model_shape_rates`, empty if they were not measured.
    """

    config: ModelConfig
    roof: Roof
    machine: Machine
    threads: int
    shapes: Mapping[str, Mapping[str, float]]


def predicted_row(ground: Ground, step: Step) -> dict[str, Any]:
    """The prediction for a step, with its parts, ready for JSON."""
    parts = predict_step(ground.config, step.work, ground.roof)
    whole = total(parts)
    return {
        "phase": step.phase,
        "batch": step.batch,
        "length": step.length,
        "context": step.context,
        "flops": whole.cost.flops,
        "bytes": whole.cost.bytes,
        "intensity": whole.cost.intensity,
        "predicted_s": whole.seconds,
        "predicted_parts_s": {name: part.seconds for name, part in parts.items()},
        "overhead_s": whole.overhead_s,
        "limiter": whole.limiter,
    }


def step_row(ground: Ground, measured: Measured) -> dict[str, Any]:
    """The measurement of a step beside its prediction."""
    seconds = measured.median_s
    row = predicted_row(ground, measured.step)
    return row | {
        "measured_s": seconds,
        "min_s": min(measured.seconds),
        "max_s": max(measured.seconds),
        "repeats": len(measured.seconds),
        "ratio": seconds / row["predicted_s"],
        "tokens_per_s": measured.step.batch * measured.step.length / seconds,
        "parts_s": dict(measured.parts),
        "waits_s": dict(measured.waits),
        "timer_s": measured.timer_s,
    }


def points(ground: Ground, measured: Measured) -> list[dict[str, Any]]:
    """A point for each class of operations that was timed."""
    parts = predict_step(ground.config, measured.step.work, ground.roof)
    return [_point(ground, measured, op, parts[op]) for op in DRAWN if op in measured.parts]


def _point(ground: Ground, measured: Measured, op: str, least: OpTime) -> dict[str, Any]:
    step, seconds = measured.step, measured.parts[op]
    return {
        "phase": step.phase,
        "op": op,
        "batch": step.batch,
        "length": step.length,
        "context": step.context,
        "intensity": least.cost.intensity,
        "flops_per_s": least.cost.flops / seconds,
        "roof_flops_per_s": least.cost.flops / least.roof_s,
        "limiter": least.limiter,
        "share": least.roof_s / seconds,
        "seconds": seconds,
        "share_of_step": seconds / sum(measured.parts.values()),
        "explained": explain(ground, step, op, least, seconds, measured.waits.get(op, 0.0)),
    }


def explain(ground: Ground, step: Step, op: str, least: OpTime, seconds: float, wait_s: float = 0.0) -> str:
    """Why a point is where it is, in words; empty if it is above its roof and no cache explains that."""
    share = least.roof_s / seconds
    if share > ABOVE:
        return _explain_above(ground, least, seconds)
    limit = LIMITS[least.limiter]
    if share >= NEAR:
        return f"at its roof, {limit}"
    gaps = _gaps(ground, step, op, least, seconds, wait_s)
    told = ", ".join(f"{gap / seconds:.0%} {words}" for gap, words in gaps if gap / seconds >= WORTH_TELLING)
    return f"its time is {share:.0%} {limit}, {told}"


def _explain_above(ground: Ground, least: OpTime, seconds: float) -> str:
    """A cache explains a speed that its own reading speed, at the size of what was read, allows."""
    own, cache = least.cost.bytes, ground.machine.cache_bytes
    rate = ground.machine.read_bytes_per_s(own, ground.threads)
    if least.limiter != "bandwidth" or own > cache or own / seconds > ABOVE * rate:
        return ""
    place = f"the last-level cache of {cache / 1e6:,.0f} MB, which can be read at up to {rate / 1e9:.3g} GB/s"
    return f"above the roof of memory: its {own / 1e6:.3g} MB stay in {place}"


def _gaps(ground: Ground, step: Step, op: str, least: OpTime, seconds: float, wait_s: float) -> list[tuple[float, str]]:
    """What fills the time beyond the roof: known parts first, and for the remainder what is known of its kind."""
    left = seconds - least.roof_s
    found = []
    calls_rule = least.limiter == "overhead"
    known = [
        (least.roofline_s if calls_rule else 0.0, "reading and arithmetic"),
        (_shape_seconds(ground, step, op) - least.roofline_s, _shape_words(step, op)),
        (0.0 if calls_rule else least.overhead_s, "calls of Python and NumPy"),
        (wait_s, "waiting for the other processes"),
    ]
    for gap, words in known:
        gap = min(max(0.0, gap), left)
        left -= gap
        found.append((gap, words))
    return [*found, (left, _rest_words(step, op))]


def _shape_seconds(ground: Ground, step: Step, op: str) -> float:
    """How long a class of linear layers would take at the speed that its own shapes were measured at, or 0."""
    rows = _rows(step, op)
    if op == "attention" or not ground.shapes or 1 < rows < MANY_ROWS:
        return 0.0
    c, q = ground.config, ground.config.num_attention_heads * ground.config.head_dim
    kv = 2 * c.num_key_value_heads * c.head_dim
    sizes = {
        "qkv": (q + kv) * c.hidden_size,
        "output": q * c.hidden_size,
        "gate_up": 2 * c.intermediate_size * c.hidden_size,
        "down": c.intermediate_size * c.hidden_size,
        "head": c.vocab_size * c.hidden_size,
    }
    layers = 1 if op == "head" else c.num_hidden_layers
    if rows == 1:
        return layers * sum(4 * sizes[name] / ground.shapes[name]["bytes_per_s"] for name in CLASSES[op])
    return layers * sum(2 * rows * sizes[name] / ground.shapes[name]["flops_per_s"] for name in CLASSES[op])


def _rows(step: Step, op: str) -> int:
    """Rows of the products: every new token, and in the head the last of each sequence."""
    return step.batch * (1 if op == "head" else step.length)


def _shape_words(step: Step, op: str) -> str:
    what = "read" if _rows(step, op) == 1 else "multiply"
    return f"because matrices of these shapes {what} more slowly than the probe's large one"


def _rest_words(step: Step, op: str) -> str:
    """What is known of the remainder; nobody has measured it apart."""
    if op == "attention":
        if step.phase == "prefill":
            return "softmax and its mask (largest, exp and sum of every score count no FLOPs here)"
        return "softmax, and short products of one row"
    if op == "head":
        return "the rest of it"
    if 1 < step.batch * step.length < MANY_ROWS:
        return "small products: a few rows at a time, inputs and outputs rearranged"
    if step.phase == "prefill" and step.length < 256:
        return "packing the weights again for few rows"
    return "the rest of it, in no part that was timed"


def headline(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points worth a label: the prefill nearest to 512 tokens, and decode alone and in the largest batch, at the
    first context."""
    prefill = [p for p in points if p["phase"] == "prefill"]
    decode = [p for p in points if p["phase"] == "decode"]
    length = min((p["length"] for p in prefill), key=lambda n: abs(n - HEADLINE_PROMPT), default=0)
    batches = {min(p["batch"] for p in decode), max(p["batch"] for p in decode)} if decode else set()
    found = [p for p in prefill if p["length"] == length]
    return found + [p for p in decode if p["batch"] in batches and p["context"] == decode[0]["context"]]


def remarks(
    report: Mapping[str, Any], drift: float, before_read: float, kept_read: float, load: float | None, cores: int
) -> list[str]:
    """What a reader must know before taking a figure home."""
    found = []
    if abs(drift) > NOT_QUIET:
        found.append(f"Machine not quiet: a ceiling moved by {drift:+.0%} between before and after.")
    if before_read < (1 - NOT_QUIET) * kept_read:
        speeds = f"{before_read / 1e9:.3g} GB/s now, {kept_read / 1e9:.3g} GB/s when its ceilings were kept"
        found.append(f"Machine not quiet: it reads {speeds} (--fresh measures them again).")
    if load is not None and load > cores / 2:
        found.append(f"Machine not quiet: the load average was {load:.1f} at the start.")
    unexplained = [p for p in report["points"] if p["share"] > ABOVE and not p["explained"]]
    if unexplained:
        names = ", ".join(sorted({f"{p['phase']} {p['op']}" for p in unexplained}))
        found.append(
            f"{len(unexplained)} points stand above their roof and no cache explains it ({names}): the ceilings were "
            f"measured too low, so measure again on a quiet machine with --fresh."
        )
    size, cache = report["ceilings"]["working_set_bytes"], report["ceilings"]["machine"]["cache_bytes"]
    if size < cache:
        what = f"The working set of {size / 1e6:,.3g} MB fits the last-level cache of {cache / 1e6:,.0f} MB"
        found.append(f"{what}, so the slanted roof here is the cache's, not the memory's.")
    return found

"""What a step should take: from counts of work (`model/cost.py`) and ceilings, for machines here and elsewhere.

An operation takes at least as long as its arithmetic and at least as long as its reading, whichever is longer. A step
is a sequence of operations, so its time is a *sum* of such maxima, not one maximum: while the linear layers of a large
batch are bound by arithmetic, its attention still waits for memory, at any batch size. On top comes overhead, the calls
that are made whether there is work in them or not.

    step = sum over operations of max(FLOPs / peak, bytes / bandwidth) + overhead

The ratio of a measured time to this prediction is the whole point. It cannot be below 1 by much, unless a ceiling was
measured on a busy machine or something stayed in a cache.

Not here: measured ceilings (`ceilings.py`), measured steps (`measure.py`). `hardware.json` holds datasheet figures of
machines that may not be at hand, each with its source and date.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minifer.errors import UsageError
from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, step_cost

CLASSES = {
    "linears": ("qkv", "output", "gate_up", "down"),
    "attention": ("attention",),
    "head": ("head",),
    "other": ("embed", "norm", "rope", "kv_write", "swiglu"),
}
"""The operations of `step_cost` in the four groups that are timed and drawn."""

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "q8_0": 34 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32}
"""Bytes per weight; the quantised blocks of llama.cpp hold 32 weights and their scales."""


@dataclass(frozen=True)
class Roof:
    """What a machine can do: the flat roof, the slanted one and the overhead, per class of operations
    `(seconds per step, seconds per further sequence)`. `memory_bytes` is 0 where it doesn't matter."""

    name: str
    flops_per_s: float
    read_bytes_per_s: float
    overhead_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    memory_bytes: float = 0

    @property
    def ridge(self) -> float:
        """FLOPs per byte where the two roofs meet."""
        return self.flops_per_s / self.read_bytes_per_s


@dataclass(frozen=True)
class OpTime:
    """Work and the least times it can take: in arithmetic, in reading, the sum of the longer of the two over what it
    consists of (`roofline_s`), and in calls."""

    cost: Cost
    compute_s: float
    bandwidth_s: float
    roofline_s: float
    overhead_s: float = 0.0

    def __add__(self, other: "OpTime") -> "OpTime":
        """One after the other."""
        mine, theirs = vars(self).values(), vars(other).values()
        return OpTime(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.roofline_s + self.overhead_s

    @property
    def limiter(self) -> str:
        """`compute`, `bandwidth` or `overhead`, whichever alone takes longest."""
        times = {"bandwidth": self.bandwidth_s, "compute": self.compute_s, "overhead": self.overhead_s}
        return max(times, key=lambda name: times[name])

    @property
    def roof_s(self) -> float:
        """The time under the lowest of the three ceilings; over the measured time this is the share of the roof."""
        return max(self.roofline_s, self.overhead_s)


NOTHING = OpTime(Cost(), 0.0, 0.0, 0.0)


def predict_ops(config: ModelConfig, work: Iterable[Work], roof: Roof, **sizes: Any) -> dict[str, OpTime]:
    """Every operation of a step, without overhead. `sizes` are those of `step_cost`: `num_logits`, `weight_bytes`,
    `activation_bytes`. The slower of the two roofs decides, for each operation by itself.

    >>> config = ModelConfig(100, 8, 16, 2, 2, 1, 4, 64, 1e-5, 1e4)
    >>> head = predict_ops(config, [Work(1, 10)], Roof("example", flops_per_s=1e9, read_bytes_per_s=1e6))["head"]
    >>> head.cost.flops, head.cost.bytes, head.roofline_s
    (1600, 3632, 0.003632)
    """
    found = {}
    for name, cost in step_cost(config, work, **sizes).items():
        compute, bandwidth = cost.flops / roof.flops_per_s, cost.bytes / roof.read_bytes_per_s
        found[name] = OpTime(cost, compute, bandwidth, max(compute, bandwidth))
    return found


def predict_step(config: ModelConfig, work: Iterable[Work], roof: Roof, **sizes: Any) -> dict[str, OpTime]:
    """A step by class of operations, overhead included; `total` of it is the step.

    >>> config = ModelConfig(100, 8, 16, 2, 2, 1, 4, 64, 1e-5, 1e4)
    >>> slow_memory = Roof("example", flops_per_s=1e9, read_bytes_per_s=1e6)
    >>> total(predict_step(config, [Work(1, 10)], slow_memory)).limiter
    'bandwidth'
    """
    sequences = list(work)
    ops = predict_ops(config, sequences, roof, **sizes)
    found = {}
    for name, members in CLASSES.items():
        once, further = roof.overhead_s.get(name, (0.0, 0.0))
        calls = OpTime(Cost(), 0.0, 0.0, 0.0, once + further * (len(sequences) - 1))
        found[name] = sum((ops[member] for member in members), calls)
    return found


def total(parts: Mapping[str, OpTime]) -> OpTime:
    """The sum over all parts of a step."""
    return sum(parts.values(), NOTHING)


@dataclass(frozen=True)
class Crossing:
    """The batch size at which something turns, or None, and in words why or why not."""

    batch: int | None
    why: str


def linears_turn_compute_bound(config: ModelConfig, roof: Roof, **sizes: Any) -> Crossing:
    """The smallest batch of a decode step whose linear layers take longer to multiply than to read.

    Each further sequence adds arithmetic and a little traffic of activations; the weights are read once for all.
    """
    one, two = (linears(config, batch, roof, **sizes) for batch in (1, 2))
    gain = (two.compute_s - one.compute_s) - (two.bandwidth_s - one.bandwidth_s)
    if gain <= 0:
        return Crossing(None, "never: a token's activations alone take longer to move than its products to compute")
    batch = 1 + max(0, math.ceil((one.bandwidth_s - one.compute_s) / gain))
    return Crossing(batch, f"from batch {batch:,} on; the ridge is at {roof.ridge:.3g} FLOP per byte")


def kv_equals_weights(config: ModelConfig, context: int, roof: Roof, **sizes: Any) -> Crossing:
    """The smallest batch that reads as much KV cache as weights in a decode step at this context."""
    weights = weight_traffic(config, **sizes)
    per_sequence = kv_traffic(config, context, **sizes)
    if per_sequence == 0:
        return Crossing(None, "never: at context 0 there is nothing in the cache")
    batch = math.ceil(weights / per_sequence)
    needed = weights + batch * per_sequence
    if roof.memory_bytes and needed > roof.memory_bytes:
        have = f"{needed / 1e9:,.0f} GB of weights and cache do not fit {roof.memory_bytes / 1e9:,.0f} GB"
        return Crossing(None, f"never: it would take batch {batch:,}, whose {have}")
    return Crossing(batch, f"from batch {batch:,} on: {weights / 1e6:,.0f} MB against {per_sequence / 1e6:,.4g} each")


def weight_traffic(config: ModelConfig, **sizes: Any) -> float:
    """Bytes of weights that a decode step reads, whatever its batch size: all matrices once, a tied embedding once."""
    free = {**sizes, "activation_bytes": 0}
    cost = step_cost(config, [Work(1, 1)], **free)
    return sum(cost[name].bytes for name in (*CLASSES["linears"], "head"))


def kv_traffic(config: ModelConfig, context: int, **sizes: Any) -> float:
    """Bytes of KV cache that a decode step reads for one sequence at this context, by kv heads.

    >>> config = ModelConfig(100, 8, 16, 2, 2, 1, 4, 64, 1e-5, 1e4)  # 2 layers, K=1, D=4
    >>> kv_traffic(config, 10), kv_traffic(config, 10, activation_bytes=2)
    (640.0, 320.0)
    """
    if context == 0:
        return 0.0
    c, width = config, sizes.get("activation_bytes", 4)
    return 2.0 * c.num_hidden_layers * min(context, c.window()) * c.num_key_value_heads * c.head_dim * width


def hardware() -> dict[str, dict[str, Any]]:
    """The table of datasheet figures: per machine `read_gbs`, `memory_gb`, `tflops` by format, `source`, `date`."""
    table: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("hardware.json").read_text("utf-8"))
    return table


def datasheet_roof(name: str, dtype: str) -> Roof:
    """The roofs of a machine from the table, without overhead. Raises UsageError for one that is not in it, or that
    does not multiply in that format; the formats of quantised weights are multiplied as float16 or float32."""
    table = hardware()
    if name not in table or not table[name]["tflops"]:
        known = ", ".join(n for n, row in table.items() if row["tflops"])
        raise UsageError(f"there are no figures for the hardware {name!r}; there are for {known}")
    row, quantised = table[name], dtype not in ("float32", "bfloat16", "float16")
    formats = ("float16", "float32") if quantised else (dtype,)
    peaks = [row["tflops"][format_] for format_ in formats if format_ in row["tflops"]]
    if not peaks:
        raise UsageError(f"{name} has no figure for {dtype}; it has {', '.join(row['tflops'])}")
    return Roof(name, peaks[0] * 1e12, row["read_gbs"] * 1e9, memory_bytes=row["memory_gb"] * 1e9)


def linears(config: ModelConfig, batch: int, roof: Roof, **sizes: Any) -> OpTime:
    """The linear layers of a decode step, the head not among them."""
    ops = predict_ops(config, [Work(1, 1)] * batch, roof, **sizes)
    return sum((ops[name] for name in CLASSES["linears"]), NOTHING)

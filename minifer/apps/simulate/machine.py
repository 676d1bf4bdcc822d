"""What a replica runs on: how long a step takes there, and how much fits.

Either this machine, as it was measured (calibrate.py), or an entry of the table of datasheet figures, alone or several
of them with every matrix split over all (tensor parallelism). A datasheet gives limits that nobody reaches, so a
simulation on it is the best case; `--efficiency 0.6` says how near one thinks to come.

Split over n machines, each does one n-th of the work, and twice per layer all need the sum of what each has computed:
after attention's output and after the MLP's. In a ring, each sends 2 (n - 1) / n of the sum over its link and waits
2 (n - 1) times for a neighbour:

    all-reduce = 2 (n - 1) / n * rows * hidden_size * bytes / link  +  2 (n - 1) * latency         twice per layer

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"; Shoeybi et al. 2019, "Megatron-LM".
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minifer.apps.roofline_elsewhere import config_at
from minifer.apps.simulate.steptime import RooflineTime, StepTime
from minifer.errors import CapacityError, FormatError, UsageError
from minifer.limits import EngineConfig
from minifer.model.config import ModelConfig
from minifer.model.cost import num_parameters
from minifer.roofline.predict import BYTES, Roof, datasheet_roof, hardware

MEMORY_SHARE = 0.9
"""Of a machine's memory for weights and cache, as vLLM's `gpu_memory_utilization`."""

LINK_LATENCY_S = 3e-6
"""One hop between neighbours unless said otherwise: launch and synchronisation of a small message over NVLink."""

SEATS, TOKENS_PER_STEP = 256, 2048
"""`max_num_seqs` and `max_num_batched_tokens` of a datasheet machine unless said otherwise."""


@dataclass(frozen=True)
class Machine:
    """One replica's machine: `time` of its steps, the `config` of its engine, and in words where both come from."""

    name: str
    model: ModelConfig
    time: StepTime
    config: EngineConfig
    about: dict[str, Any]


@dataclass(frozen=True)
class Split:
    """Tensor parallelism over `degree` machines with a link of `link_bytes_per_s` in each direction."""

    degree: int = 1
    link_bytes_per_s: float = 1.0
    latency_s: float = LINK_LATENCY_S

    def all_reduce_s(self, model: ModelConfig, width: int) -> tuple[float, float]:
        """Seconds of all sums of a step: what is there anyway, and what comes with each row.

        >>> model = ModelConfig(100, 8, 16, 2, 2, 1, 4, 64, 1e-5, 1e4)
        >>> Split(4, link_bytes_per_s=1e6, latency_s=1e-3).all_reduce_s(model, width=2)
        (0.024, 9.6e-05)
        """
        if self.degree == 1:
            return 0.0, 0.0
        sums, hops = 2 * model.num_hidden_layers, 2 * (self.degree - 1)
        sent = hops / self.degree * model.hidden_size * width
        return sums * hops * self.latency_s, sums * sent / self.link_bytes_per_s


def model_config(model: str) -> ModelConfig:
    """The configuration of a model by name, folder, .gguf file or config.json; no weights are read.

    Raises ModelNotFoundError, FormatError or UnsupportedError.
    """
    try:
        return config_at(model, download=True)
    except FormatError as error:
        if Path(model).suffix != ".json":
            raise
        raise FormatError(f"{model} is not a config.json: {error}") from error


def datasheet_machine(
    name: str,
    model: ModelConfig,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    efficiency: float = 1.0,
    step_overhead_s: float = 0.0,
    link_latency_s: float = LINK_LATENCY_S,
    **limits: Any,
) -> Machine:
    """`tensor_parallel` machines of the table as one replica. `limits` are EngineConfig's, None where left open.

    Raises UsageError for unknown hardware or formats and impossible splits, CapacityError if the model does not fit.
    """
    if dtype not in BYTES:
        raise UsageError(f"unknown dtype {dtype!r}: use {', '.join(BYTES)}")
    if not 0 < efficiency <= 1:
        raise UsageError(f"the efficiency is a share of the datasheet's figures, above 0 to 1, not {efficiency}")
    roof = datasheet_roof(name, dtype)
    split = _split(name, model, tensor_parallel, link_latency_s)
    width = 4 if dtype == "float32" else 2
    per_step, per_row = split.all_reduce_s(model, width)
    real = replace(roof, flops_per_s=roof.flops_per_s * efficiency, read_bytes_per_s=roof.read_bytes_per_s * efficiency)
    time = RooflineTime(
        model,
        real,
        weight_bytes=BYTES[dtype],
        activation_bytes=width,
        split=tensor_parallel,
        per_step_s=per_step + step_overhead_s,
        per_row_s=per_row,
    )
    config = _limits(model, roof, BYTES[dtype], width, tensor_parallel, name, limits)
    about = {
        "machine": name,
        "tensor_parallel": tensor_parallel,
        "dtype": dtype,
        "efficiency": efficiency,
        "source": hardware()[name]["source"],
        "all_reduce_us_per_step": 1e6 * per_step,
        "all_reduce_us_per_row": 1e6 * per_row,
        "step_overhead_us": 1e6 * step_overhead_s,
    }
    return Machine(name if tensor_parallel == 1 else f"{tensor_parallel} x {name}", model, time, config, about)


def _split(name: str, model: ModelConfig, degree: int, latency_s: float) -> Split:
    heads = model.num_attention_heads
    if degree < 1 or heads % degree:
        raise UsageError(f"{heads} attention heads cannot be split over {degree} machines: use a divisor of {heads}")
    if degree == 1:
        return Split()
    link = hardware()[name].get("link_gbs")
    if link is None:
        raise UsageError(f"{name} has no figure for a link to its neighbours: use --tensor-parallel-size 1")
    return Split(degree, link * 1e9, latency_s)


def _limits(
    model: ModelConfig, roof: Roof, weight_bytes: float, width: int, degree: int, name: str, given: dict[str, Any]
) -> EngineConfig:
    """The engine's limits: as many blocks as the memory holds beside the weights, at most what all seats can fill."""
    options = {key: value for key, value in given.items() if value is not None}
    size = options.setdefault("block_size", 16)
    seats = options.setdefault("max_num_seqs", SEATS)
    options.setdefault("max_num_batched_tokens", max(TOKENS_PER_STEP, seats))
    longest = options.setdefault("max_model_len", model.max_position_embeddings)
    if longest > model.max_position_embeddings:
        raise UsageError(f"max_model_len={longest} exceeds the model's context of {model.max_position_embeddings}")
    weights = num_parameters(model) * weight_bytes
    memory = roof.memory_bytes * degree * MEMORY_SHARE
    per_block = model.kv_bytes_per_token / 4 * width * max(1, size)
    room = int((memory - weights) // per_block)
    if room < 1:
        raise CapacityError(
            f"{degree} x {name} hold {memory / 1e9:.1f} GB for weights and cache ({MEMORY_SHARE:.0%} of "
            f"{roof.memory_bytes * degree / 1e9:.0f} GB), but the weights alone are {weights / 1e9:.1f} GB and a block "
            f"of the cache {per_block / 1e6:.2f} MB: use more machines, or a narrower dtype"
        )
    options.setdefault("num_blocks", min(room, max(1, seats) * -(-longest // max(1, size))))
    if options["num_blocks"] > room:
        raise CapacityError(
            f"num_blocks={options['num_blocks']} blocks of {per_block / 1e6:.2f} MB do not fit beside "
            f"{weights / 1e9:.1f} GB of weights in {memory / 1e9:.1f} GB: at most {room} do"
        )
    options["max_model_len"] = min(longest, options["num_blocks"] * size)
    return EngineConfig(**options)

"""`minifer roofline MODEL --hardware NAME`: a prediction for a machine that is not here, from its datasheet.

Only the two roofs count, without overhead, so what comes out is an upper bound on speed. No weights are needed: a
config.json is enough.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from minifer.errors import UsageError
from minifer.model.config import ModelConfig
from minifer.model.cost import Work, num_parameters
from minifer.roofline import predict

DTYPE, BATCHES, CONTEXTS, PROMPTS = "bfloat16", (1, 8, 64), (1024,), (512,)
ACTIVATION_BYTES = {"float32": 4}
"""Everything narrower keeps activations and cache in 16 bits."""


def run(args: argparse.Namespace) -> int:
    """Print the table of machines, or the prediction for one of them."""
    if args.hardware == "list":
        _print_hardware(args.json)
        return 0
    report = predicted(
        args.model, args.hardware, args.dtype or DTYPE,
        args.batch or BATCHES, args.context or CONTEXTS, args.prompt or PROMPTS,
    )  # fmt: skip
    if args.json:
        print(json.dumps(report))
    else:
        print("\n".join(lines(report)))
    return 0


def config_at(model: str, *, download: bool = False) -> ModelConfig:
    """The configuration of a model: of a config.json, or of whatever `hub.locate` finds. No weights are read."""
    from minifer.formats.safetensors import read_json
    from minifer.formats.tensors import open_checkpoint
    from minifer.hub import locate
    from minifer.model.load import config_of

    path = Path(model)
    if path.suffix == ".json" and path.is_file():
        return ModelConfig.from_hf(read_json(path))
    files = locate(model, download=download)
    return ModelConfig.from_hf(files.config) if files.kind == "random" else config_of(open_checkpoint(files.path))


def predicted(
    model: str, hardware: str, dtype: str, batches: tuple[int, ...], contexts: tuple[int, ...], prompts: tuple[int, ...]
) -> dict[str, Any]:
    """The prediction as plain data. Raises UsageError for a machine or a format that is not in the tables."""
    if dtype not in predict.BYTES:
        raise UsageError(f"unknown dtype {dtype!r}; there are {', '.join(predict.BYTES)}")
    config, roof = config_at(model), predict.datasheet_roof(hardware, dtype)
    sizes = {"weight_bytes": predict.BYTES[dtype], "activation_bytes": ACTIVATION_BYTES.get(dtype, 2)}
    steps = [("prefill", 1, n, n) for n in prompts]
    steps += [("decode", batch, 1, context) for context in contexts for batch in batches]
    return {
        "model": {"name": model, "parameters": num_parameters(config), "dtype": dtype,
                  "weight_bytes": predict.weight_traffic(config, **sizes)},
        "hardware": {"name": hardware, **predict.hardware()[hardware]},
        "ridge": roof.ridge,
        "steps": [_row(config, roof, sizes, *step) for step in steps],
        "crossings": {
            "linears_compute_bound": vars(predict.linears_turn_compute_bound(config, roof, **sizes)),
            "kv_equals_weights": [
                {"context": c, **vars(predict.kv_equals_weights(config, c, roof, **sizes))} for c in contexts
            ],
        },
    }  # fmt: skip


def lines(report: dict[str, Any]) -> list[str]:
    """The prediction as a table."""
    m, h, crossings = report["model"], report["hardware"], report["crossings"]
    found = [
        f"{m['name']}: {m['parameters'] / 1e9:,.3g} billion parameters in {m['dtype']}, "
        f"{m['weight_bytes'] / 1e9:,.3g} GB read per step",
        f"{h['about']}: {h['read_gbs']:,} GB/s, ridge {report['ridge']:,.0f} FLOP per byte",
        f"({h['source']}, {h['date']})",
        "A prediction from two datasheet roofs, without overhead: an upper bound.",
        "",
        f"  {'step':<22}{'time':>12}{'tok/s':>12}{'FLOP/byte':>11}   limited by    memory",
    ]
    for row in report["steps"]:
        name = (
            f"prefill {row['length']:,}"
            if row["phase"] == "prefill"
            else f"decode {row['batch']} at {row['context']:,}"
        )
        fits = f"{row['memory_bytes'] / 1e9:,.1f} GB" + ("" if row["fits"] else ": does not fit")
        numbers = f"{row['seconds'] * 1e3:>9,.4g} ms{row['tokens_per_s']:>12,.5g}{row['intensity']:>11,.3g}"
        found.append(f"  {name:<22}{numbers}   {row['limiter']:<14}{fits}")
    found += ["", f"Linear layers turn compute-bound {crossings['linears_compute_bound']['why']}."]
    for kv in crossings["kv_equals_weights"]:
        found.append(f"At context {kv['context']:,} a decode step reads as much cache as weights {kv['why']}.")
    return found


def _row(
    config: ModelConfig, roof: predict.Roof, sizes: dict[str, Any], phase: str, batch: int, length: int, context: int
) -> dict[str, Any]:
    parts = predict.predict_step(config, [Work(length, context)] * batch, roof, **sizes)
    whole = predict.total(parts)
    memory = num_parameters(config) * sizes["weight_bytes"]
    memory += batch * predict.kv_traffic(config, context, activation_bytes=sizes["activation_bytes"])
    return {
        "phase": phase,
        "batch": batch,
        "length": length,
        "context": context,
        "seconds": whole.seconds,
        "tokens_per_s": batch * length / whole.seconds,
        "intensity": whole.cost.intensity,
        "limiter": whole.limiter,
        "parts": {name: {"seconds": p.seconds, "limiter": p.limiter} for name, p in parts.items()},
        "memory_bytes": memory,
        "fits": memory <= roof.memory_bytes,
    }


def _print_hardware(as_json: bool) -> None:
    table = predict.hardware()
    if as_json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        peaks = ", ".join(f"{kind} {value:,}" for kind, value in row["tflops"].items())
        peaks = peaks or f"{row['flops_per_cycle']} FLOP per cycle and core in float32"
        print(f"{name:<16}{row['about']}: {row['read_gbs']:,} GB/s; {peaks + (' TFLOP/s' if row['tflops'] else '')}")
        print(f"{'':<16}{row['source']}, {row['date']}")

"""The measurement behind `minifer roofline MODEL`: ceilings, prediction, steps, requests, ceilings again.

The order is the point: what should come out is written down before anything is measured. The report is a plain
dictionary that grows as the run goes on, so that whatever stops it, what was measured until then can be kept.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minifer.apps import doctor, roofline_report
from minifer.errors import CapacityError, MiniferError
from minifer.llm import LLM
from minifer.model.config import ModelConfig
from minifer.model.cost import Work, num_parameters
from minifer.roofline import predict
from minifer.roofline.ceilings import load_or_measure, model_shape_rates
from minifer.roofline.measure import Step, measure_step, null_overhead
from minifer.roofline.probes import Ceilings, measure_ceilings, usable_cores
from minifer.sampling_params import SamplingParams

BASE_CONTEXT = 128
GENERATED = 16
BATCHED_PROMPT = 16
REQUEST_REPEATS = 3
SHAPE_ROWS = 512
CEILING_S, SHAPE_S = 1.0, 0.1
CEILINGS_VERSION = 1
"""A change to how ceilings are measured makes those that were kept useless."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sweep:
    """What to measure: prompt lengths, batch sizes (at the first context), contexts (at the first batch size)."""

    prompts: tuple[int, ...] = (16, 64, 256, 512, 1024, 2048)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    contexts: tuple[int, ...] = (128, 256, 512, 1024, 2048)

    def steps(self, longest: int) -> list[Step]:
        """The steps of this sweep that a model with a context of `longest` tokens can take."""
        prefill = [Step(1, n, n) for n in self.prompts if n <= longest]
        by_batch = [Step(batch, 1, self.contexts[0]) for batch in self.batches]
        by_context = [Step(self.batches[0], 1, context) for context in self.contexts[1:]]
        return prefill + [step for step in by_batch + by_context if step.context <= longest]


class Run:
    """One run. `report` is what `roofline.json` will hold; every method adds to it."""

    def __init__(
        self, llm: LLM, sweep: Sweep, *, threads: int | None = None, kv_limit_bytes: float = 4e9, repeats: int = 5
    ) -> None:
        """Nothing is measured yet."""
        self.llm, self.sweep, self.config = llm, sweep, llm.config
        self.threads, self.kv_limit, self.repeats = threads or usable_cores(), kv_limit_bytes, repeats
        weights = int(predict.weight_traffic(self.config))
        self.working_set = weights + int(predict.kv_traffic(self.config, sweep.contexts[0]))
        self.steps = sweep.steps(self.config.max_position_embeddings)
        self.report: dict[str, Any] = {
            "model": {
                "name": llm.name,
                "parameters": num_parameters(self.config),
                "weight_bytes": weights,
                "kv_bytes_per_token": self.config.kv_bytes_per_token,
                "dtype": "float32",
                "room": llm.ops.name,
                "device": llm.device.name,
            },
            "conditions": conditions(),
            "ceilings": {},
            "crossings": {},
            "predictions": [],
            "steps": [],
            "points": [],
            "refused": [],
            "requests": [],
            "remarks": [],
            "complete": False,
        }

    def measure_ceilings(self, progress: Progress, *, fresh: bool) -> None:
        """The machine's ceilings, kept or new; those at this model's working set and shapes; the overhead."""
        state = self.report["conditions"]
        memory = doctor.memory()["available_bytes"]
        self.machine = load_or_measure(machine_key(state), state, memory, progress, fresh=fresh)
        progress("measuring ceilings at this model's size", 0, 0)
        self.before = self._ceilings()
        overhead = null_overhead(self.config, self.llm.ops.name, self.llm.device, **self._room_options())
        shapes = {} if self._on_gpu() else model_shape_rates(
            model_shapes(self.config), SHAPE_ROWS, min(self.working_set, memory // 4), self.threads, SHAPE_S
        )  # fmt: skip
        flops, read = self.before.flops_per_s, self.before.read_bytes_per_s
        roof = predict.Roof("this machine", flops, read, overhead)
        self.ground = roofline_report.Ground(self.config, roof, self.machine, self._known_threads(), shapes)
        self.report["ceilings"] = {
            "read_bytes_per_s": read,
            "flops_per_s": flops,
            "ridge": roof.ridge,
            "working_set_bytes": self.before.working_set_bytes,
            "threads": self.threads,
            "overhead_s": overhead,
            "linear_bytes": predict.linears(self.config, 1, roof).cost.bytes,
            "shapes": shapes,
            "datasheet": local_datasheet(self.threads),
            "machine": asdict(self.machine),
        }

    def predict(self) -> list[dict[str, Any]]:
        """What every step should take, and where the regimes change."""
        config, roof, context = self.config, self.ground.roof, 1024
        linears = predict.linears_turn_compute_bound(config, roof)
        kv = predict.kv_equals_weights(config, context, roof)
        self.report["crossings"] = {
            "linears_compute_bound": asdict(linears),
            "kv_equals_weights": asdict(kv) | {"context": context},
        }
        self.report["predictions"] = [roofline_report.predicted_row(self.ground, step) for step in self.steps]
        found: list[dict[str, Any]] = self.report["predictions"]
        return found

    def measure_steps(self) -> Iterator[dict[str, Any] | str]:
        """Measure one step after the other; yields its row, or why it was refused."""
        for step in self.steps:
            try:
                measured = measure_step(
                    self.config, self.llm.weights, self.llm.ops, self.llm.device, step,
                    repeats=self.repeats, kv_limit_bytes=self.kv_limit,
                )  # fmt: skip
            except CapacityError as error:
                self.report["refused"].append(str(error))
                yield str(error)
                continue
            row = roofline_report.step_row(self.ground, measured)
            self.report["steps"].append(row)
            self.report["points"] += roofline_report.points(self.ground, measured)
            yield row

    @property
    def num_requests(self) -> int:
        """How many rows `measure_requests` will have."""
        return len(self._kinds())

    def measure_requests(self) -> Iterator[dict[str, Any]]:
        """TTFT and ITL of whole requests through the engine: by prompt length, then by how many run at once."""
        for length, batch in self._kinds():
            yield self._request(length, batch, REQUEST_REPEATS if batch == 1 else 1)

    def _kinds(self) -> list[tuple[int, int]]:
        """Prompt length and batch size of the requests that fit the engine."""
        longest = (self.llm.limits.max_model_len or 0) - GENERATED - 1
        alone = [(length, 1) for length in self.sweep.prompts if length <= longest]
        batches = [b for b in self.sweep.batches if 1 < b <= self.llm.limits.max_num_seqs]
        return alone + [(min(BATCHED_PROMPT, longest), batch) for batch in batches]

    def finish(self) -> None:
        """Take the ceilings again, and say what a reader must know."""
        after = self._ceilings()
        drift = self.before.drift(after)
        ceilings, state = self.report["ceilings"], self.report["conditions"]
        ceilings["after"] = {"read_bytes_per_s": after.read_bytes_per_s, "flops_per_s": after.flops_per_s}
        ceilings["drift"] = drift
        kept = 0.0 if self._on_gpu() else self.machine.read_bytes_per_s(self.working_set, self._known_threads())
        self.report["remarks"] = roofline_report.remarks(
            self.report, drift, self.before.read_bytes_per_s, kept, state["load_average"], state["usable_cores"]
        )
        self.report["complete"] = True

    def _request(self, length: int, batch: int, repeats: int) -> dict[str, Any]:
        params = SamplingParams(max_tokens=GENERATED + 1, temperature=0.0, ignore_eos=True)
        vocab = self.config.vocab_size
        ttft: list[float] = []
        itl: list[float] = []
        for _ in range(repeats):
            prompts = [[(7 * i + 13 * j) % vocab for i in range(length)] for j in range(batch)]
            for output in self.llm.generate(prompts, params):
                if output.metrics.ttft is None:
                    raise MiniferError(f"a request of {length} tokens failed: {output.outputs[0].error}")
                ttft.append(output.metrics.ttft)
                itl += output.metrics.itl
        work = [Work(1, length + GENERATED // 2)] * batch
        row = {
            "prompt": length,
            "batch": batch,
            "ttft_s": statistics.median(ttft),
            "ttft_min_s": min(ttft),
            "ttft_max_s": max(ttft),
            "itl_s": statistics.median(itl),
            "itl_min_s": min(itl),
            "itl_max_s": max(itl),
            "predicted_ttft_s": self._predicted([Work(length, length)] * batch),
            "predicted_itl_s": self._predicted(work),
        }
        self.report["requests"].append(row)
        return row

    def _predicted(self, work: list[Work]) -> float:
        return predict.total(predict.predict_step(self.config, work, self.ground.roof)).seconds

    def _ceilings(self) -> Ceilings:
        """The two ceilings at this model's working set, on the device that it runs on."""
        if self._on_gpu():
            from minifer.roofline import cuda

            found = cuda.measure()
            assert found is not None, "a model runs on a GPU that is not there"
            return Ceilings(found["read_bytes_per_s"], found["flops_per_s"]["float32"], self.working_set)
        memory = doctor.memory()["available_bytes"]
        return measure_ceilings(
            self.working_set, memory_limit_bytes=memory, threads=self.threads, seconds_each=CEILING_S
        )

    def _known_threads(self) -> int:
        """Ceilings are kept for one thread and for all."""
        return self.threads if self.threads in (1, usable_cores()) else usable_cores()

    def _room_options(self) -> dict[str, Any]:
        return {"threads": self.threads} if self.llm.ops.name == "cpu" else {}

    def _on_gpu(self) -> bool:
        return bool(self.llm.device.name.startswith("cuda"))


def model_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The matrices `[out, in]` of a model by the name of the operation that reads them."""
    c, q = config, config.num_attention_heads * config.head_dim
    return {
        "qkv": (q + 2 * c.num_key_value_heads * c.head_dim, c.hidden_size),
        "output": (c.hidden_size, q),
        "gate_up": (2 * c.intermediate_size, c.hidden_size),
        "down": (c.hidden_size, c.intermediate_size),
        "head": (c.vocab_size, c.hidden_size),
    }


def conditions() -> dict[str, Any]:
    """Under which circumstances the numbers came about."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        **doctor.conditions(),
        "blas": [f"{b['internal_api']} {b['version']} {b['architecture'] or ''}".strip() for b in doctor.blas()],
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
    }


def machine_key(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the conditions that ceilings depend on."""
    names = ("cpu", "system", "usable_cores", "numpy", "blas", "openblas_coretype")
    return {"version": CEILINGS_VERSION, **{name: state[name] for name in names}}


def local_datasheet(threads: int) -> dict[str, Any] | None:
    """What the makers say of this processor: FLOP/s of `threads` cores at the clock that Linux tells, and bytes per
    second of the whole socket's memory. None for a processor that is not in the table."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return None
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    identity = " ".join(told.get(name, "?") for name in ("vendor_id", "cpu family", "model"))
    for row in predict.hardware().values():
        if row.get("cpu") == identity and "cpu MHz" in told:
            flops = row["flops_per_cycle"] * float(told["cpu MHz"]) * 1e6 * threads
            return {"about": row["about"], "flops_per_s": flops, "read_bytes_per_s": row["read_gbs"] * 1e9,
                    "source": row["source"], "date": row["date"]}  # fmt: skip
    return None

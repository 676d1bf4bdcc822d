"""A model on a GPU: seconds of a decode step from a graph and without, of prompts, and what the step had to do.

Weights are random (a forward pass takes as long whatever the numbers are), tokens are the model's own greedy choice,
the cache is empty memory behind the given context. A decode step is timed as the engine runs it: bring what changed,
replay, wait for the tokens. Its floor is the larger of the two times that the measured ceilings allow: bytes (weights
once, the keys and values that are seen) over reading, FLOPs over the 16-bit product.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minifer import ops as rooms
from minifer.device import Device
from minifer.errors import MiniferError
from minifer.limits import EngineConfig
from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, step_cost
from minifer.model.load import Model, load_model
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch
from minifer.ops.cuda_launch import act_dtype
from minifer.roofline.speed import necessary_bytes
from minifer.sampling_params import SamplingParams
from minifer.scheduler.plan import ScheduledSeq

BLOCK_SIZE = 16
WARM_UP_STEPS = 4
REPEATS = 5


class GpuModel:
    """A model in the GPU room twice, with graphs and without, sharing its weights.

    `longest` is the most tokens of a sequence, which decides how wide the block tables are.
    """

    def __init__(
        self, model: str | Model, device: Device, dtype: str, *, longest: int = 1024, batch: int = 32, step: int = 512
    ) -> None:
        """Load (or make) the weights and bring them to the device. Raises the room's errors."""
        loaded = load_model(model) if isinstance(model, str) else model
        self.name, self.config, self.device, self.dtype = loaded.name, loaded.config, device, dtype
        self.itemsize = act_dtype(dtype).itemsize
        self.rooms = {
            graphs: rooms.open_room("cuda", loaded.config, device, dtype=dtype, graphs=graphs)
            for graphs in (True, False)
        }
        blocks = batch * -(-longest // BLOCK_SIZE)
        limits = EngineConfig(blocks, BLOCK_SIZE, batch, max(step, batch), longest)
        for room in self.rooms.values():
            room.reserve(loaded.weights.num_parameters, limits)
        self.weights = self.rooms[True].prepare(loaded.weights)

    def close(self) -> None:
        """Give the memory back."""
        self.weights = None
        for room in self.rooms.values():
            room.close()

    def decode(self, batch: int, context: int, steps: int, *, graphs: bool) -> list[float]:
        """Seconds of each of `steps` decode steps behind `context` tokens, warm-up left out."""
        room, params = self.rooms[graphs], SamplingParams(temperature=0.0)
        blocks = -(-(context + steps + WARM_UP_STEPS + 1) // BLOCK_SIZE)
        store = room.new_store(batch * blocks, BLOCK_SIZE)
        tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(batch)]
        tokens, times = [1] * batch, []
        for n in range(steps + WARM_UP_STEPS):
            at = context - 1 + n
            seqs = [
                ScheduledSeq(
                    f"r{i}", (tokens[i],), at, (table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE,), table,
                    True, "decode",
                )
                for i, table in enumerate(tables)
            ]  # fmt: skip
            start = time.perf_counter()
            chosen = room.decode(self.weights, seqs, store, [(params, 0, at + 1)] * batch)
            times.append(time.perf_counter() - start)
            tokens = [max(0, token) for token, _ in chosen]
        return times[WARM_UP_STEPS:]

    def prefill(self, length: int, repeats: int = REPEATS) -> list[float]:
        """Seconds of a prompt of `length` tokens, logits of its last one; the first of the runs only warms up."""
        room, blocks = self.rooms[True], -(-length // BLOCK_SIZE)
        store = room.new_store(blocks, BLOCK_SIZE)
        ids = np.random.default_rng(0).integers(0, self.config.vocab_size, length).tolist()
        times = []
        for _ in range(repeats + 1):
            self.device.synchronize()
            start = time.perf_counter()
            batch = make_batch([(ids, 0, tuple(range(blocks)))], BLOCK_SIZE, xp=self.device.xp)
            forward(self.weights, batch, store, room)
            self.device.synchronize()
            times.append(time.perf_counter() - start)
        return times[1:]

    def row(self, job: str, seconds: list[float], work: list[Work], ceilings: Mapping[str, Any]) -> dict[str, Any]:
        """A measured step with what it had to do, and its share of the floor."""
        return {"job": job, "tokens": sum(w.length for w in work), **timing(seconds, sum(w.length for w in work)),
                **load(self.config, work, self.itemsize, statistics.median(seconds), ceilings)}  # fmt: skip


def timing(seconds: list[float], tokens: int) -> dict[str, float]:
    """Median, extremes, tokens per second."""
    median = statistics.median(seconds)
    return {"seconds": median, "least": min(seconds), "most": max(seconds), "tokens_per_s": tokens / median}


def load(
    config: ModelConfig, work: list[Work], itemsize: int, seconds: float, ceilings: Mapping[str, Any]
) -> dict[str, Any]:
    """FLOPs and bytes of a step, its place on the roofline, and the share of the time that they account for."""
    flops = sum(step_cost(config, work).values(), Cost()).flops
    nbytes = necessary_bytes(config, work, kv_width=itemsize, weight_width=itemsize)
    reading, arithmetic = nbytes / ceilings["bytes_per_s"], flops / ceilings["flops_per_s"]
    return {
        "flops": flops, "bytes": nbytes, "flops_per_byte": flops / nbytes, "flops_per_s": flops / seconds,
        "bytes_per_s": nbytes / seconds, "floor_s": max(reading, arithmetic),
        "share": max(reading, arithmetic) / seconds, "bound_by": "reading" if reading > arithmetic else "arithmetic",
    }  # fmt: skip


def measure_model(
    name: str, device: Device, dtype: str, ceilings: Mapping[str, Any], *, small: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """All rows of one model. A row that fails carries its error; the model's own failure is raised."""
    say(f"{name}: making weights")
    longest, step = (64, 64) if small else (4096 + 128, 2048)
    model = GpuModel(name, device, dtype, longest=longest, batch=1 if small else 32, step=step)
    rows = []
    try:
        for job, work, measure in _jobs(model, small=small):
            say(f"{name}: {job}")
            try:
                rows.append(model.row(job, measure(), work, ceilings))
            except MiniferError as error:
                rows.append({"job": job, "error": str(error)})
            except Exception as error:  # CuPy's own: out of memory, say, which must not lose the other rows
                rows.append({"job": job, "error": f"{type(error).__name__}: {error}"[:300]})
    finally:
        model.close()
    return {"model": model.name, "dtype": dtype, "launches_per_step": 10 * model.config.num_hidden_layers + 4,
            "rows": rows}  # fmt: skip


def _jobs(model: GpuModel, *, small: bool) -> Iterator[tuple[str, list[Work], Callable[[], list[float]]]]:
    """Name, work and measurement of every row."""
    cases = [(1, 5)] if small else [(1, 512), (8, 512), (32, 512), (1, 4096)]
    prompts, steps = ([7], 1) if small else ([512, 2048], 64)
    for batch, context in cases:
        for graphs in (True, False):
            way = "graph" if graphs else "eager"
            work = [Work(1, context + steps // 2)] * batch
            job = f"decode b{batch} @ {context}, {way}"

            def decode(b: int = batch, c: int = context, g: bool = graphs) -> list[float]:
                return model.decode(b, c, steps, graphs=g)

            yield job, work, decode
    for length in prompts:

        def prefill(n: int = length) -> list[float]:
            return model.prefill(n, 1 if small else REPEATS)

        yield f"prefill {length}", [Work(length, length)], prefill

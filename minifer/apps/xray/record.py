"""Run prompts for real, and note beside the trace what only the executor knows.

A trace says what the scheduler decided and when. The x-ray wants two things more, and gets them as optional fields of
the step's line:

    "ops":   {"qkv": [FLOPs, bytes, seconds], ...}   predicted work and measured time of every operation
    "draws": {"r1": {"top": [[id, p, p_after_the_cut], ...], "drawn": id, "kept": n, "rank": r}, ...}

FLOPs and bytes are those of `model/cost.py`. The time is that of timers around the operations of the room, which cost a
few per cent of a step; `rest` is what no operation accounts for: Python, and residual additions. On a GPU operations
run behind the caller's back, so there are no times, only work.

What this file does not do: measure speed. A run with instruments in it is for looking at.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from minifer import sampling
from minifer.apps import doctor
from minifer.engine import Engine
from minifer.errors import UsageError
from minifer.executor import ModelExecutor, batch_of, sampled
from minifer.limits import EngineConfig
from minifer.model.config import ModelConfig
from minifer.model.cost import Work, step_cost
from minifer.model.transformer import forward
from minifer.roofline.profile import Timers, timers_in
from minifer.sampling_params import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.plan import StepPlan, StepResult
from minifer.scheduler.request import Request
from minifer.scheduler.static import StaticScheduler
from minifer.trace import TraceWriter

if TYPE_CHECKING:
    from minifer.llm import LLM

TOP = 10
"""Candidates shown for each drawn token."""

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """How a run is made: who decides, and the engine's limits. `label` is how the page calls it."""

    label: str
    limits: EngineConfig
    static: bool = False


def switched(limits: EngineConfig, switch: str, blocks_needed: int) -> Setting:
    """The same engine with one switch flipped. Raises UsageError for a switch that is not in `SWITCHES`.

    `blocks_needed` are those of the largest request, below which no pool can go.
    """
    if switch not in SWITCHES:
        raise UsageError(f"there is no switch {switch!r}; --ab takes one of {', '.join(SWITCHES)}")
    return SWITCHES[switch](limits, blocks_needed)


def _whole(limits: EngineConfig, _: int) -> Setting:
    tokens = max(limits.max_num_batched_tokens, limits.max_model_len or limits.capacity)
    whole = replace(limits, enable_chunked_prefill=False, max_num_batched_tokens=tokens)
    return Setting("no chunked prefill", whole)


def _small_pool(limits: EngineConfig, needed: int) -> Setting:
    pool = replace(limits, num_blocks=needed, max_model_len=min(limits.max_model_len or 1 << 62,
                                                                needed * limits.block_size))  # fmt: skip
    return Setting(f"small pool ({needed} blocks)", pool)


SWITCHES: dict[str, Callable[[EngineConfig, int], Setting]] = {
    "static": lambda limits, _: Setting("static batching", limits, static=True),
    "one-seat": lambda limits, _: Setting("one seat", replace(limits, max_num_seqs=1)),
    "no-prefix-caching": lambda limits, _: Setting("no prefix caching", replace(limits, enable_prefix_caching=False)),
    "no-chunked-prefill": _whole,
    "small-chunks": lambda limits, _: Setting(
        "chunks of 16", replace(limits, max_num_batched_tokens=max(16, limits.max_num_seqs))
    ),
    "small-pool": _small_pool,
}
"""What `--ab` can flip, each with what the second run is called."""


def record(
    llm: "LLM",
    prompts: Sequence[tuple[int, ...]],
    params: Sequence[SamplingParams],
    setting: Setting,
    progress: Callable[[int], object] = lambda _: None,
) -> Records:
    """Run prompts (token ids) with a loaded model under a setting; the lines of the trace, with `ops` and `draws`.

    All prompts are there from the start. `progress` is told how many tokens each step brought. Raises CapacityError for
    a prompt that can never run under the setting.
    """
    watching = Watching(llm, setting)
    lines = io.StringIO()
    with watching.instruments(), TraceWriter(lines) as trace:
        engine = Engine((StaticScheduler if setting.static else ContinuousScheduler)(setting.limits), watching,
                        llm.clock, trace)  # fmt: skip
        for number, (ids, wanted) in enumerate(zip(prompts, params, strict=True), start=1):
            name = f"r{number}"
            longest = setting.limits.fit(name, len(ids), wanted.max_tokens)
            seeded = replace(wanted, max_tokens=longest, seed=number if wanted.seed is None else wanted.seed)
            engine.add(Request(name, ids, seeded, llm.clock.now(), eos_ids=llm.config.eos_token_ids))
        while engine.has_work:
            progress(len(engine.step()))
    return _finished(lines.getvalue(), llm, setting, watching)


def about_of(llm: "LLM", setting: Setting, records: Records) -> dict[str, Any]:
    """What the header says of a run: model, machine, and the text of every token that the page may show."""
    pieces = {}
    if llm.tokenizer is not None:
        pieces = {str(token): llm.tokenizer.decode([token]) for token in sorted(set(_tokens(records)))}
    scheduler = "StaticScheduler" if setting.static else "ContinuousScheduler"
    return {
        "model": llm.name,
        "scheduler": scheduler,
        "kv_bytes_per_token": llm.config.kv_bytes_per_token,
        "room": llm.ops.name,
        **doctor.conditions(),
        "pieces": pieces,
    }


def _finished(text: str, llm: "LLM", setting: Setting, watching: "Watching") -> Records:
    """The trace's lines with what the executor noted, times in whole microseconds from the first arrival on."""
    records: Records = [json.loads(line) for line in text.splitlines()]
    zero = min(record["arrival"] for record in records if record["kind"] == "request")
    for record in records[1:]:
        for name in ("time", "arrival", "start", "end"):
            if name in record:
                record[name] = round(record[name] - zero, 6)
        if record["kind"] == "step":
            record |= watching.notes.get(record["step"], {})
    records[0] |= {"config": asdict(setting.limits), "about": about_of(llm, setting, records)}
    return records


def _tokens(records: Records) -> Iterator[int]:
    for record in records:
        yield from record.get("prompt", ())
        yield from (row[1] for row in record.get("tokens", ()) if row[1] is not None)
        yield from (row[0] for draw in record.get("draws", {}).values() for row in draw["top"])


@dataclass
class Watching:
    """An executor that computes what `ModelExecutor` does, and notes where a step's time went and what was drawn."""

    llm: "LLM"
    setting: Setting
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)
    timers: Timers | None = None

    @contextlib.contextmanager
    def instruments(self) -> Iterator[None]:
        """Put the timers in, and take them out at the end."""
        if self.llm.device.name != "cpu":
            yield
            return
        with timers_in(self.llm.ops, self.llm.weights) as self.timers:
            yield

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """Compute a plan; see `Executor`."""
        llm, timers = self.llm, self.timers
        if not plan.seqs:
            return ModelExecutor(llm.weights, llm.store, llm.ops, llm.device).run(plan, requests)
        if timers:
            timers.restart()
        llm.store.copy_blocks(plan.copies)
        logits = llm.device.to_host(forward(llm.weights, batch_of(plan.seqs, llm.device), llm.store, llm.ops))
        if timers:
            timers.stop()
        times = {name: ns / 1e9 for name, ns in timers.ns.items()} if timers else {}
        sampling_seqs = [requests[seq.request_id] for seq in plan.seqs if seq.samples]
        results = tuple(sampled(request, row) for request, row in zip(sampling_seqs, logits, strict=True))
        self.notes[plan.step] = {
            "ops": work_of(llm.config, plan, times),
            "draws": {request.id: drawn(request, row, result.token_id)
                      for request, row, result in zip(sampling_seqs, logits, results, strict=True)
                      if result.token_id is not None},
        }  # fmt: skip
        return StepResult(results)


def work_of(config: ModelConfig, plan: StepPlan, times: Mapping[str, float]) -> dict[str, list[float | None]]:
    """By operation: FLOPs, bytes, seconds (None where there is no time)."""
    rows = sum(seq.samples for seq in plan.seqs)
    costs = step_cost(config, [Work(len(seq.tokens), seq.context) for seq in plan.seqs], num_logits=rows)
    found: dict[str, list[float | None]] = {}
    for name, cost in costs.items():
        found[name] = [cost.flops, cost.bytes, round(times[name], 7) if name in times else None]
    others = sum(seconds for name, seconds in times.items() if name not in costs and name != "waiting")
    if times:
        found["rest"] = [0, 0, round(others, 7)]
        found["waiting"] = [0, 0, round(times.get("waiting", 0.0), 7)]
    return found


def drawn(request: Request, logits: np.ndarray, token: int) -> dict[str, Any]:
    """How one token was chosen from its row of logits `[V]`: the likeliest candidates with their probability under the
    model, and what was left of it after penalties, temperature and cuts."""
    params = request.params
    model = np.exp(sampling.log_softmax(logits))
    scores = sampling.apply_penalties(logits, params, request.prompt_ids, request.output_ids)
    if params.greedy:
        after = np.zeros_like(model)
        after[int(scores.argmax())] = 1.0
    else:
        scores = sampling.apply_temperature(scores, params.temperature)
        scores = sampling.keep_min_p(scores, params.min_p)
        scores = sampling.keep_top_p(sampling.keep_top_k(scores, params.top_k), params.top_p)
        after = np.exp(sampling.log_softmax(scores))
    order = np.argsort(-model, kind="stable")
    shown = [int(i) for i in order[:TOP]]
    rank = int(np.flatnonzero(order == token)[0]) + 1
    if token not in shown:
        shown.append(token)
    return {
        "top": [[i, float(f"{model[i]:.4g}"), float(f"{after[i]:.4g}")] for i in shown],
        "drawn": token,
        "rank": rank,
        "kept": int(np.count_nonzero(after)),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
    }

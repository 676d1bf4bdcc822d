"""The capstone: a fleet that keeps too few of its promises, traffic that nobody has seen, and a score.

The fleet is given: four NVIDIA L4 by their datasheet, each with a model of Llama 3.1 8B's shape in bfloat16, on a
virtual clock. So is the kind of traffic: conversations behind a few long system prompts, and now and then a document
of thousands of tokens to be read at once, all of it in bursts. How much of each, which prompts and when: that is drawn
from a seed. The open seeds are for practice; the one that counts is the teacher's.

A `Plan` is what may be changed. The score is goodput: requests per second that kept both promises, a first token within
2 s and 100 ms for each token after it. It is a pure function of plan and seed, on every machine the same.

    python -m minifer.apps.simulate.capstone --seed 7                 # the baseline and the reference
    python -m minifer.apps.simulate.capstone --seed 7 plans/*.py      # each file defines plan()

The rules, and what enforces them: a plan is checked (`Plan`); the order of admission sees a `Waiting` and the routing
policy three numbers (policies.py), neither of which knows how long an answer will be, nor what comes next. A plan file
is code and runs here: take a stranger's only in a container.
"""

import argparse
import json
import os
import random
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.simulate.machine import Machine, datasheet_machine
from minifer.apps.simulate.policies import Policy, cheapest
from minifer.apps.workloads import Arrival, arrival_times
from minifer.errors import MiniferError, UsageError
from minifer.metrics import RequestMetrics, meets
from minifer.model.config import ModelConfig
from minifer.scheduler.request import Request

SHAPE = ModelConfig(128256, 4096, 14336, 32, 32, 8, 128, 16384, 1e-5, 500000.0)
"""Llama 3.1 8B: vocabulary, widths, layers, heads, kv heads, head size; a context of 16,384 is enough here."""

REPLICAS = 4
SLO_MS = {"ttft": 2000.0, "tpot": 100.0}
OPEN_SEEDS = (1, 2, 3)
SEED_VARIABLE = "MINIFER_CAPSTONE_SEED"
REQUESTS, RATE, BURSTINESS = 240, 8.0, 0.3
SYSTEM_PROMPTS, SYSTEM_TOKENS = 12, (600, 1400)
QUESTION_TOKENS, ANSWER_TOKENS = (20, 200), (20, 160)
DOCUMENT_TOKENS, SUMMARY_TOKENS, DOCUMENTS = (2500, 7000), (20, 60), (0.12, 0.2)
"""Ranges from which a workload is drawn: lengths in tokens, and the share of documents."""

CHUNKS, SEATS, BLOCK_SIZES = (64, 8192), (1, 64), (8, 16, 32, 64)
"""What a plan may ask for: smallest and largest tokens per step, fewest and most seats, block sizes."""

PREFILL_PER_S = 2000.0
"""Tokens of a prompt that weigh as much as a second of waiting."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the order of admission may know of a request: when it came (seconds), and the tokens of its prompt."""

    arrival: float
    prompt_tokens: int


Order = Callable[[Waiting], Any]


def first_come(waiting: Waiting) -> float:
    """The order of the baseline."""
    return waiting.arrival


def patience(waiting: Waiting) -> float:
    """An order: by when a request came, a long prompt as if it had come later. The smallest value goes first.

    Each second of waiting outweighs `PREFILL_PER_S` tokens of prompt. So a short question overtakes a document, but a
    document that has waited for long enough is not overtaken by questions that have just come: nobody starves.

    >>> patience(Waiting(arrival=10.0, prompt_tokens=100)) < patience(Waiting(arrival=9.0, prompt_tokens=4100))
    True
    >>> patience(Waiting(arrival=10.0, prompt_tokens=100)) < patience(Waiting(arrival=7.0, prompt_tokens=4100))
    False
    """
    return waiting.arrival + waiting.prompt_tokens / PREFILL_PER_S


@dataclass(frozen=True)
class Plan:
    """How the fleet is run. The defaults are the baseline.

    `route` is a name (round-robin, least-loaded, prefix-affinity, cheapest) or a function as in policies.py; `order`
    gives each request a value, and the smallest goes first; `chunk` is the most tokens of a step, `seats` the most
    answers in a batch. Raises UsageError for what the rules don't allow.

    >>> Plan(seats=1000)
    Traceback (most recent call last):
    minifer.errors.UsageError: seats must be a whole number from 1 to 64, not 1000
    """

    route: str | Policy = "round-robin"
    order: Order = first_come
    chunk: int = 2048
    seats: int = 32
    block_size: int = 16
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name, (low, high) in (("chunk", CHUNKS), ("seats", SEATS)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
        if self.block_size not in BLOCK_SIZES:
            raise UsageError(f"block_size must be one of {BLOCK_SIZES}, not {self.block_size!r}")
        if self.seats > self.chunk:
            raise UsageError(f"{self.seats} seats cannot each have a token in steps of chunk={self.chunk}")
        if not callable(self.order):
            raise UsageError(f"order must be a function of a Waiting, not {self.order!r}")


BASELINE = Plan()


def plan() -> Plan:
    """The reference's answer, which is a good one and not the best.

    A chunk small enough that a step with it keeps the promise between tokens, documents behind questions, and prompts
    where their beginning is known unless others wait there.
    """
    return Plan(route=cheapest, order=patience, chunk=384)


def workload(seed: int | str, requests: int = REQUESTS) -> list[Arrival]:
    """The traffic of a seed, in the order of time.

    >>> len(workload(1)), workload(1)[5] == workload(1)[5], workload(1)[5] == workload(2)[5]
    (240, True, False)
    """
    source = random.Random(f"capstone:{seed}")
    documents = source.uniform(*DOCUMENTS)
    prefixes = [_tokens(source, source.randint(*SYSTEM_TOKENS)) for _ in range(SYSTEM_PROMPTS)]
    popular = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]  # Zipf's law: the first is asked most
    arrivals = []
    for index, at in enumerate(arrival_times(requests, RATE, BURSTINESS, f"capstone:{seed}")):
        if source.random() < documents:
            prompt, answer = _tokens(source, source.randint(*DOCUMENT_TOKENS)), source.randint(*SUMMARY_TOKENS)
        else:
            (system,) = source.choices(prefixes, popular)
            prompt, answer = system + _tokens(source, source.randint(*QUESTION_TOKENS)), source.randint(*ANSWER_TOKENS)
        arrivals.append(Arrival(index, at, prompt, answer))
    return arrivals


def _tokens(source: random.Random, count: int) -> tuple[int, ...]:
    return tuple(source.choices(range(SHAPE.vocab_size), k=count))


@dataclass(frozen=True)
class Score:
    """`goodput` in requests per second, `kept` of `requests`, who broke which promise, and every request's metrics."""

    goodput: float
    kept: int
    requests: int
    late_first: int
    slow_after: int
    duration: float
    cached_share: float
    finished: tuple[RequestMetrics, ...]


def score(wanted: Plan, seed: int | str, requests: int = REQUESTS) -> Score:
    """Run the traffic of `seed` on the fleet as planned. Takes about half a second, and always gives the same."""
    fleet = make_fleet(wanted)
    arrivals = workload(seed, requests)
    tally = fleet.run(arrivals)
    finished = tuple(tally.finished)
    kept = sum(meets(m, SLO_MS) for m in finished)
    prompts = sum(m.prompt_tokens for m in finished)
    return Score(
        goodput(finished, tally.duration, SLO_MS),
        kept,
        len(arrivals),
        sum(not meets(m, {"ttft": SLO_MS["ttft"]}) for m in finished),
        sum(not meets(m, {"tpot": SLO_MS["tpot"]}) for m in finished),
        tally.duration,
        sum(m.cached_tokens for m in finished) / prompts if prompts else 0.0,
        finished,
    )


def goodput(finished: Sequence[RequestMetrics], duration: float, slo_ms: dict[str, float]) -> float:
    """Requests per second that kept every promise of `slo_ms`; those without a token kept none. 0 for no time at all.

    >>> quick = RequestMetrics(ttft=0.5, tpot=0.05, output_tokens=2)
    >>> goodput([quick, replace(quick, ttft=2.5), RequestMetrics()], 2.0, {"ttft": 2000})
    0.5
    """
    kept = sum(metrics.output_tokens > 0 and meets(metrics, slo_ms) for metrics in finished)
    return kept / duration if duration > 0 else 0.0


def make_fleet(wanted: Plan) -> Fleet:
    """The four machines, run as planned."""
    machine, window = _machine(), SHAPE.window()
    config = replace(
        machine.config,
        block_size=wanted.block_size,
        num_blocks=machine.config.capacity // wanted.block_size,
        max_num_seqs=wanted.seats,
        max_num_batched_tokens=wanted.chunk,
        enable_prefix_caching=bool(wanted.prefix_caching),
    )

    def order(request: Request) -> tuple:
        return (wanted.order(Waiting(request.arrival, len(request.prompt_ids))),)

    return Fleet(lambda _: Replica(config, machine.time, window, order=order), REPLICAS, wanted.route)


@cache
def _machine() -> Machine:
    return datasheet_machine("l4", SHAPE, dtype="bfloat16", efficiency=0.7, step_overhead_s=0.002)


def seed_of(given: str | None = None) -> str:
    """The teacher's seed: `given`, or the environment's MINIFER_CAPSTONE_SEED, or the first open one."""
    return given or os.environ.get(SEED_VARIABLE) or str(OPEN_SEEDS[0])


def load_plan(path: str) -> Plan:
    """The plan of a file that defines `plan()`. Raises UsageError, whatever is wrong with the file."""
    try:
        found = runpy.run_path(path)["plan"]()
    except MiniferError:
        raise
    except KeyError as error:
        raise UsageError(f"{path} should define a function plan() ({error} is missing)") from error
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Plan):
        raise UsageError(f"plan() in {path} should return a Plan, not {type(found).__name__}")
    return found


def scores(paths: Sequence[str], seed: str) -> list[dict[str, Any]]:
    """The baseline, the reference, then each file: its goodput, or why there is none. The best first."""
    makers: list[tuple[str, Callable[[], Plan]]] = [("baseline", lambda: BASELINE), ("reference", plan)]
    makers += [(path, lambda path=path: load_plan(path)) for path in paths]  # type: ignore[misc]
    rows = []
    for name, make in makers:
        try:
            found = score(make(), seed)
        except Exception as error:  # a policy is code: whatever it does is its own row and nobody else's
            rows.append({"plan": name, "goodput": 0.0, "problem": f"{error}" or type(error).__name__})
            continue
        row = {"plan": name, "goodput": found.goodput, "kept": found.kept, "requests": found.requests}
        rows.append({**row, "late_first": found.late_first, "slow_after": found.slow_after, "problem": None})
    return sorted(rows, key=lambda row: -row["goodput"])


def main(words: Sequence[str] | None = None) -> int:
    """The teacher's command: score plans on a seed. Exit status 1 if one could not be scored."""
    parser = argparse.ArgumentParser(prog="python -m minifer.apps.simulate.capstone", description="Score plans.")
    parser.add_argument("plans", nargs="*", metavar="FILE", help="Python files that define plan()")
    parser.add_argument("--seed", help=f"the hidden one (default: {SEED_VARIABLE}, or {OPEN_SEEDS[0]})")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    args = parser.parse_args(words)
    seed = seed_of(args.seed)
    rows = scores(args.plans, seed)
    if args.json:
        print(json.dumps({"seed": seed, "slo_ms": SLO_MS, "scores": rows}, indent=1))
    else:
        print(f"{'goodput, requests/s':>20}{'kept':>12}{'late first':>12}{'slow after':>12}  plan")
        for row in rows:
            kept = "-" if row["problem"] else f"{row['kept']} of {row['requests']}"
            late, slow = row.get("late_first", "-"), row.get("slow_after", "-")
            why = f": {row['problem']}" if row["problem"] else ""
            print(f"{row['goodput']:>20.3g}{kept:>12}{late:>12}{slow:>12}  {row['plan']}{why}")
    return int(any(row["problem"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

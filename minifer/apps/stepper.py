"""A scheduler on the fake model, one step at a time, forward and back: what `minifer step` and the notebooks show.

A *workload* says which requests arrive when; times are counted in steps. It is a JSON file,

    {"limits": {"num_blocks": 10, "block_size": 4}, "requests": [{"arrival": 0, "prompt": 6, "max_tokens": 10}, ...]}

(or the list of requests alone), or a CSV file with the same columns. `prompt` is a length or a list of ids, and the
first `shared` tokens are the same in every request that has them.

A `Frame` is a plain value and holds everything there is to see after a step. So going back is looking at an earlier
frame; nothing has to be undone. Every answer is checked against the fake model's solo run when it ends.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minifer.clock import ManualClock
from minifer.engine import Engine
from minifer.errors import FormatError, InvariantError, UsageError
from minifer.limits import EngineConfig
from minifer.sampling import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor, fake_salt, fake_tokens
from minifer.scheduler.plan import StepPlan, StepResult
from minifer.scheduler.request import Request, State
from minifer.scheduler.static import StaticScheduler

SCHEDULERS = {"continuous": ContinuousScheduler, "static": StaticScheduler}

DEMO: dict[str, Any] = {
    "limits": {"num_blocks": 10, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 12},
    "requests": [
        {"id": "ann", "arrival": 0, "prompt": 9, "shared": 8, "max_tokens": 9},
        {"id": "bob", "arrival": 1, "prompt": 26, "max_tokens": 3},
        {"id": "cat", "arrival": 2, "prompt": 3, "max_tokens": 6},
        {"id": "dan", "arrival": 5, "prompt": 10, "shared": 8, "max_tokens": 12, "n": 2},
        {"id": "eve", "arrival": 7, "prompt": 9, "shared": 8, "max_tokens": 14},
        {"id": "fay", "arrival": 8, "prompt": 2, "max_tokens": 4},
    ],
}
"""A workload in which everything happens once: chunks, a cached prefix, a fork with copies, preemption."""


@dataclass(frozen=True)
class Arrival:
    """One request of a workload; `arrival` is the number of steps that were made before it comes."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int = 0
    n: int = 1
    priority: int = 0


@dataclass(frozen=True)
class Block:
    """What one block of the pool holds: the ids in it, and the requests whose tables it stands in."""

    state: str  # "held" | "idle" (findable, and free) | "blank"
    held_by: tuple[str, ...] = ()
    used: int = 0


@dataclass(frozen=True)
class Seat:
    """One running request after a step."""

    id: str
    did: str  # "prefill", "decode", or "-" if it had to sit this step out
    new: int  # tokens fed in by this step
    computed: int
    known: int
    output: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """Everything there is to see of one step: the plan, and the state it left behind."""

    step: int
    sentence: str
    waiting: tuple[str, ...] = ()
    running: tuple[Seat, ...] = ()
    finished: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    said: tuple[tuple[str, int | None, str | None], ...] = ()  # id, token, finish reason
    preemptions: int = 0
    tokens_from_cache: int = 0
    done: bool = False


@dataclass
class Stepper:
    """Steps a workload on demand and keeps the frames.

    >>> stepper = Stepper([Arrival("r1", (5, 6, 7), 2)], EngineConfig(num_blocks=4, block_size=4))
    >>> stepper.frame(1).sentence
    'step 1: prefill r1[0:3]; tokens: 3; admitted r1; running: 1, waiting: 0, free blocks: 3'
    >>> stepper.frame(2).done, stepper.frame(99).step, stepper.frame(0).sentence
    (True, 2, 'step 0: nothing has happened yet')
    """

    arrivals: list[Arrival]
    config: EngineConfig
    scheduler: str = "continuous"
    frames: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        for arrival in self.arrivals:
            self.config.fit(arrival.id, len(arrival.prompt), arrival.max_tokens)
        self._to_come = sorted(self.arrivals, key=lambda arrival: arrival.arrival)
        self._clock = ManualClock()
        self._scheduler = SCHEDULERS[self.scheduler](self.config)
        self._fake = FakeExecutor(self.config.num_blocks, self.config.block_size)
        self._engine = Engine(self._scheduler, self, self._clock)
        self._requests: list[Request] = []
        self._plan = StepPlan(0, 0.0)
        blank = (Block("blank"),) * self.config.num_blocks
        self.frames.append(Frame(0, "step 0: nothing has happened yet", blocks=blank, done=not self.arrivals))

    def frame(self, number: int) -> Frame:
        """The state after so many steps, or the last one there is."""
        while len(self.frames) <= number and not self.frames[-1].done:
            self._step()
        return self.frames[min(max(number, 0), len(self.frames) - 1)]

    def run(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepResult:
        """The executor's side of the engine."""
        self._plan = plan
        return self._fake.run(plan, requests)

    def _step(self) -> None:
        number = len(self.frames)
        while self._to_come and self._to_come[0].arrival < number:
            self._add(self._to_come.pop(0))
        self._plan = StepPlan(self._scheduler.num_steps + 1, self._clock.now())
        events = self._engine.step()
        self._clock.advance(1.0)
        for event in events:
            if event.finish_reason:
                self._check(next(r for r in self._requests if r.id == event.request_id))
        said = tuple((event.request_id, event.token_id, event.finish_reason) for event in events)
        self.frames.append(self._photograph(number, said))

    def _add(self, arrival: Arrival) -> None:
        params = SamplingParams(n=arrival.n, max_tokens=arrival.max_tokens)
        request = Request(arrival.id, arrival.prompt, params, float(arrival.arrival), arrival.priority)
        self._engine.add(request)
        self._requests += [request, *request.siblings]

    def _check(self, request: Request) -> None:
        right = fake_tokens(request.prompt_ids, request.max_tokens, fake_salt(request))
        if request.output_ids != right:
            raise InvariantError(f"{request.id} got another answer than alone: a block was mixed up")

    def _photograph(self, number: int, said: tuple) -> Frame:
        scheduler = self._scheduler
        work = {seq.request_id: seq for seq in self._plan.seqs}
        seats = tuple(
            Seat(
                r.id,
                work[r.id].phase if r.id in work else "-",
                len(work[r.id].tokens) if r.id in work else 0,
                r.num_computed,
                len(r.token_ids),
                tuple(r.output_ids),
            )
            for r in scheduler.running
        )
        return Frame(
            step=number,
            sentence=str(self._plan),
            waiting=tuple(r.id for r in scheduler.waiting),
            running=seats,
            finished=tuple(r.id for r in self._requests if r.state is State.FINISHED),
            blocks=tuple(self._block(index) for index in range(self.config.num_blocks)),
            said=said,
            preemptions=scheduler.num_preemptions,
            tokens_from_cache=scheduler.prefix_hits,
            done=not self._to_come and not scheduler.requests,
        )

    def _block(self, index: int) -> Block:
        pool, size = self._scheduler.pool, self.config.block_size
        holders = [r for r in self._scheduler.running if index in r.block_table]
        if not holders:
            findable = pool.prefix is not None and index in pool.prefix
            return Block("idle", (), size) if findable else Block("blank")
        used = max(min(r.num_computed - r.block_table.index(index) * size, size) for r in holders)
        return Block("held", tuple(r.id for r in holders), max(used, 0))


def as_json(frame: Frame) -> dict[str, Any]:
    """A frame as plain JSON values."""
    return asdict(frame)


# ---- workloads -------------------------------------------------------------------------------------------------------


def load_workload(source: str) -> tuple[dict[str, int], list[Arrival]]:
    """The limits and the requests of "demo", a .json or a .csv file. Raises FormatError naming the entry at fault."""
    data = DEMO if source == "demo" else _read(Path(source))
    limits, rows = (data.get("limits", {}), data.get("requests")) if isinstance(data, dict) else ({}, data)
    if not isinstance(rows, list) or not isinstance(limits, dict):
        raise FormatError(f'{source}: expected a list of requests, or {{"limits": {{...}}, "requests": [...]}}')
    arrivals = [_arrival(f"{source}, request {i}", row, i) for i, row in enumerate(rows, start=1)]
    if len({arrival.id for arrival in arrivals}) < len(arrivals):
        raise FormatError(f"{source}: two requests have the same id")
    return limits, arrivals


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the workload {str(path)!r} cannot be read ({error.strerror}); `demo` is built in") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8 text") from None
    if path.suffix == ".csv":
        return list(_csv_rows(path, text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from None


def _csv_rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            yield {name: value if name == "id" else int(value) for name, value in row.items() if value != ""}
        except (TypeError, ValueError):
            raise FormatError(f"{path}, line {number}: expected whole numbers under the header, got {row}") from None


def _arrival(where: str, row: Any, number: int) -> Arrival:
    known = {"id", "arrival", "prompt", "shared", "max_tokens", "n", "priority"}
    if not isinstance(row, dict) or not {"prompt", "max_tokens"} <= row.keys() <= known:
        raise FormatError(f"{where}: needs `prompt` and `max_tokens`, and may have {', '.join(sorted(known))}")
    prompt, shared = row["prompt"], row.get("shared", 0)
    numbers = {name: row.get(name, default) for name, default in (("arrival", 0), ("n", 1), ("priority", 0))}
    numbers["max_tokens"] = row["max_tokens"]
    ids = prompt if isinstance(prompt, list) else [prompt]
    for value in (*numbers.values(), shared, *ids):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FormatError(f"{where}: {value!r} is no whole number from 0 on")
    if not isinstance(prompt, list):
        if prompt > 1_000_000:
            raise FormatError(f"{where}: a prompt of {prompt} tokens is too long to play with")
        ids = [i if i < shared else (17 * number + 7 * i) % 500 + 500 for i in range(prompt)]
    return Arrival(str(row.get("id", f"r{number}")), tuple(ids), **numbers)

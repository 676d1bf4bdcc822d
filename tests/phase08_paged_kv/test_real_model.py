"""The theorems on real weights: no block, batch, chunk or preemption may change an answer.

What is right was not computed by minifer: the prompts and their greedy tokens are golden values. Every cache begins as
NaN, so a slot that was never written cannot pass unnoticed.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minifer.device import select_device
from minifer.engine import Engine
from minifer.executor import ModelExecutor, sequence_seed
from minifer.limits import EngineConfig
from minifer.model.load import load_model
from minifer.ops import open_room
from minifer.sampling import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.request import Request
from tests.models import ROOMS


class Served:
    """A model in a room, with the golden prompts and answers."""

    def __init__(self, path: Path, golden: Path, room: str, **options: Any) -> None:
        model, self.device = load_model(path), select_device("cpu")
        self.ops = open_room(room.partition("-")[0], model.config, self.device, **ROOMS[room] | options)
        self.weights = self.ops.prepare(model.weights)
        prompts = json.loads(golden.read_text(encoding="utf-8"))["prompts"]
        self.golden = [(p["prompt_ids"], p.get("greedy") or p["greedy32"]) for p in prompts]

    def engine(self, num_blocks: int, block_size: int, max_num_seqs: int = 8, **limits: Any) -> Engine:
        """An engine on a fresh, poisoned cache."""
        scheduler = ContinuousScheduler(EngineConfig(num_blocks, block_size, max_num_seqs, **limits))
        store = self.ops.new_store(num_blocks, block_size, poison=True)
        return Engine(scheduler, ModelExecutor(self.weights, store, self.ops, self.device))

    def asked(self, count: int | None = None, skip: int = 0) -> tuple[list[Request], list[list[int]]]:
        """Requests for the golden prompts, `skip` of the answer's tokens already behind them; and the right answers."""
        requests, right = [], []
        for number, (prompt, greedy) in enumerate(self.golden[:count]):
            requests.append(ask(f"g{number}+{skip}", [*prompt, *greedy[:skip]], len(greedy) - skip))
            right.append(greedy[skip:])
        return requests, right


def ask(name: str, prompt: list[int], max_tokens: int, **params: Any) -> Request:
    """A greedy request unless `params` say otherwise."""
    return Request(
        name, tuple(prompt), SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | params)
    )


def finish(engine: Engine, *requests: Request, most_steps: int = 5000) -> list[list[int]]:
    """Answer everybody, in a bounded number of steps and with the blocks counted after each."""
    for request in requests:
        engine.add(request)
    for _ in range(most_steps):
        if not engine.has_work:
            break
        engine.step()
        engine.scheduler.pool.check(r.block_table for r in engine.scheduler.running)
    everyone = [answer for request in requests for answer in (request, *request.siblings)]
    assert [r.finish_reason for r in everyone] == ["length"] * len(everyone), [r.error for r in everyone]
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
    return [r.output_ids for r in everyone]


@pytest.fixture(scope="module", params=[room for room in ("reference", "cpu") if room in ROOMS])
def tiny(request: pytest.FixtureRequest, tiny_path: Path, golden_path: Path) -> Iterator[Served]:
    served = Served(tiny_path, golden_path / "tiny.json", request.param)
    yield served
    served.ops.close()


@pytest.mark.parametrize("seats", [1, 3, 8])
def test_alone_and_in_company(tiny: Served, seats: int) -> None:
    requests, right = tiny.asked()
    assert finish(tiny.engine(64, 16, seats), *requests) == right


@pytest.mark.parametrize("seed", range(2))
def test_in_any_order_of_arrival(tiny: Served, seed: int) -> None:
    """Some come late, into a batch that is already running."""
    rng, engine = random.Random(seed), tiny.engine(64, 8, 5)
    requests, right = tiny.asked()
    order = rng.sample(range(len(requests)), len(requests))
    for number in order[:-2]:
        engine.add(requests[number])
        for _ in range(rng.randrange(9)):
            engine.step()
    finish(engine, *(requests[number] for number in order[-2:]))
    assert [r.output_ids for r in requests] == right


@pytest.mark.parametrize("budget", [8, 9, 31])
def test_a_prompt_in_chunks(tiny: Served, budget: int) -> None:
    requests, right = tiny.asked(skip=30)  # prompts of 31 to 44 tokens
    assert finish(tiny.engine(64, 16, max_num_batched_tokens=budget), *requests) == right


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "caching"), [(16, 4, True), (16, 4, False), (5, 16, True), (3, 32, False)]
)
def test_preempted_and_resumed(tiny: Served, num_blocks: int, block_size: int, caching: bool) -> None:
    engine = tiny.engine(num_blocks, block_size, enable_prefix_caching=caching)
    requests, right = tiny.asked()
    assert finish(engine, *requests) == right
    assert engine.scheduler.num_preemptions > 0, "this pool should be too small for all of them"
    assert [len(r.token_times) for r in requests] == [len(tokens) for tokens in right]


def test_penalties_know_prompt_and_answer_apart_after_a_preemption(tiny: Served) -> None:
    def requests() -> list[Request]:
        penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
        return [ask(f"p{i}", prompt, 30, **penalties) for i, (prompt, _) in enumerate(tiny.golden)]

    roomy, tight = tiny.engine(128, 4), tiny.engine(13, 4)
    right = finish(roomy, *requests())
    assert finish(tight, *requests()) == right
    assert tight.scheduler.num_preemptions > roomy.scheduler.num_preemptions == 0
    assert right != [greedy[:30] for _, greedy in tiny.golden], "the penalties should change something"


def test_a_cached_prefix_is_as_good_as_a_computed_one(tiny: Served) -> None:
    """First the prompts; then again, with more and more of their own answers behind them, as in a conversation."""
    engine = tiny.engine(256, 4)
    for turn, skip in enumerate((0, 0, 9, 33)):
        requests, right = tiny.asked(skip=skip)
        assert finish(engine, *requests) == right
        cached = [r.num_cached or 0 for r in requests]
        prompts = [len(r.prompt_ids) for r in requests]
        assert cached == [(n - 1) // 4 * 4 if turn else 0 for n in prompts]


def test_prompts_that_differ_in_the_last_token_of_a_block(tiny: Served) -> None:
    prompt, greedy = tiny.golden[-1]
    base = [*prompt, *greedy][:16]
    prompts = [[*base[:15], token, *base[8:12]] for token in (base[15], (base[15] + 256) % 1200, base[15] - 1)]
    engine = tiny.engine(16, 16)
    together = [finish(engine, ask(f"a{i}", ids, 12))[0] for i, ids in enumerate(prompts)]
    fresh = [finish(tiny.engine(16, 16), ask(f"b{i}", ids, 12))[0] for i, ids in enumerate(prompts)]
    assert together == fresh
    assert engine.scheduler.prefix_hits == 0


@pytest.mark.parametrize("num_blocks", [32, 5])
@pytest.mark.parametrize("length", [15, 16, 17, 20])
def test_n_answers_are_four_solo_runs(tiny: Served, length: int, num_blocks: int) -> None:
    """One prompt, four answers that share its blocks and write into copies; in a small pool some are preempted too."""
    prompt = [*tiny.golden[0][0], *tiny.golden[0][1]][:length]
    params = {"temperature": 1.0, "top_p": 0.95}
    engine = tiny.engine(num_blocks, 16)
    answers = finish(engine, ask("n", prompt, 24, n=4, seed=length, **params))
    assert engine.scheduler.pool.copied == 3 or num_blocks == 5
    solo = [
        finish(tiny.engine(8, 16), ask("s", prompt, 24, seed=sequence_seed(length, i), **params))[0] for i in range(4)
    ]
    assert answers == solo
    assert len({tuple(answer) for answer in answers}) == 4
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks == 5)


@pytest.mark.skipif("cpu" not in ROOMS, reason="there is no CPU room here")
def test_the_same_bits_where_the_room_promises_them(tiny_path: Path, golden_path: Path) -> None:
    """With one kernel for every batch size nothing is left to rounding: log-probabilities too are equal."""
    served = Served(tiny_path, golden_path / "tiny.json", "cpu", batch_invariant=True)

    def log_probabilities(engine: Engine) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for request in served.asked(5)[0]:
            engine.add(request)
        for event in engine.run():
            found.setdefault(event.request_id, []).append(event.logprob)
        return found

    alone = log_probabilities(served.engine(64, 16, 1))
    company = log_probabilities(served.engine(64, 16, 8))
    tight = served.engine(16, 4, 8, max_num_batched_tokens=8)
    assert alone == company == log_probabilities(tight)
    assert tight.scheduler.num_preemptions > 0
    served.ops.close()


# ---- SmolLM2 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, golden_path: Path) -> Iterator[Served]:
    served = Served(smollm2_path, golden_path / "smollm2.json", "cpu-2" if "cpu-2" in ROOMS else "reference")
    yield served
    served.ops.close()


@pytest.mark.model
@pytest.mark.parametrize(("num_blocks", "block_size"), [(4, 16), (7, 16), (23, 4)])
def test_six_goldens_in_tiny_pools(smollm2: Served, num_blocks: int, block_size: int) -> None:
    engine = smollm2.engine(num_blocks, block_size, max_num_batched_tokens=16)
    requests, right = smollm2.asked()
    assert finish(engine, *requests) == right
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.model
def test_sixteen_conversations_for_twenty_rounds(smollm2: Served) -> None:
    """The golden prompts, and the same with parts of their answers behind them; a round asks for a few more tokens."""
    rng, engine = random.Random(0), smollm2.engine(48, 16, 16, max_num_batched_tokens=64)
    for turn in range(20):
        asked = [smollm2.asked(skip=skip) for skip in (0, 5, 11)]
        pairs = [pair for requests, right in asked for pair in zip(requests, right, strict=True)]
        pairs = rng.sample(pairs, 16)
        for request, _ in pairs:
            request.params = SamplingParams(temperature=0, max_tokens=6 + turn % 3, ignore_eos=True)
        answers = finish(engine, *(request for request, _ in pairs))
        assert answers == [right[: 6 + turn % 3] for _, right in pairs], f"round {turn}"
    assert engine.scheduler.prefix_hits > 0

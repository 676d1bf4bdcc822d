"""Phase 09: the engine on the GPU room: whatever is scheduled, the tokens are the CPU's; and what a decode step costs.

Greedy tokens of `tiny` are golden values that another implementation computed; everything else is compared with the
reference on a CPU, on a model small enough for kernels whose threads are fibers. Counts are those of the stand-in:
launches, waits, memory taken while a step is launched.
"""

import json

import numpy as np
import pytest

from minifer.apps.testing.strict_machine import machine
from minifer.device import select_device
from minifer.engine import Engine
from minifer.executor import ModelExecutor
from minifer.limits import EngineConfig
from minifer.meter import Meter
from minifer.model.config import ModelConfig
from minifer.model.load import load_model
from minifer.model.weights import build_weights
from minifer.ops import open_room
from minifer.ops.cuda_decode import BUCKETS
from minifer.sampling import SamplingParams
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.request import Request
from tests.gpu_rooms import DEVICES, needs_compiler
from tests.models import BASE, prompt_of, tensors_of

SMALL = ModelConfig(
    **BASE
    | {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 6}
)
LAYERS = SMALL.num_hidden_layers


class Served:
    """A model in a room, and engines around it. Every cache begins as NaN."""

    def __init__(self, config, weights, device, room="cuda", **options):
        self.device = select_device(device)
        self.ops = open_room(room, config, self.device, **options)
        self.weights = self.ops.prepare(weights)

    def engine(self, num_blocks=64, block_size=4, max_num_seqs=8, **limits):
        store = self.ops.new_store(num_blocks, block_size, poison=True)
        executor = ModelExecutor(self.weights, store, self.ops, self.device)
        return Engine(ContinuousScheduler(EngineConfig(num_blocks, block_size, max_num_seqs, **limits)), executor)


def small(device, room="cuda", **options):
    return Served(SMALL, build_weights(SMALL, tensors_of(SMALL)), device, room, **options)


@pytest.fixture(scope="module", params=DEVICES)
def gpu(request):
    return small(request.param)


@pytest.fixture(scope="module")
def cpu():
    return small("cpu", "reference")


PROMPTS = [prompt_of(SMALL, length, seed=length) for length in (11, 3, 17, 8, 4)]


def ask(name, prompt, max_tokens=6, **params):
    wanted = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | params
    return Request(name, tuple(prompt), SamplingParams(**wanted))


def answers(engine, requests):
    for request in requests:
        engine.add(request)
    engine.run()
    everyone = [one for request in requests for one in (request, *request.siblings)]
    assert [r.error for r in everyone] == [None] * len(everyone)
    return [r.output_ids for r in everyone]


@pytest.mark.parametrize("device", DEVICES)
def test_tiny_answers_as_the_golden_values_say(tiny_path, golden_path, device):
    """What transformers computed once, from three prompts at once."""
    golden = json.loads((golden_path / "tiny.json").read_text(encoding="utf-8"))["prompts"][:3]
    model = load_model(tiny_path)
    engine = Served(model.config, model.weights, device).engine()
    requests = [ask(f"g{i}", one["prompt_ids"], 3) for i, one in enumerate(golden)]
    assert answers(engine, requests) == [(one.get("greedy") or one["greedy32"])[:3] for one in golden]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_batched_tokens": 5, "max_num_seqs": 3},  # chunks of prompts beside running answers
        {"num_blocks": 11, "max_num_seqs": 4, "enable_prefix_caching": False},  # preemption
        {"max_num_seqs": 1},
    ],
    ids=["together", "chunked", "preempted", "alone"],
)
def test_no_schedule_changes_an_answer(gpu, cpu, limits):
    """Together, in chunks, preempted or alone: what the reference says to each by itself."""
    right = [answers(cpu.engine(), [ask("alone", prompt)])[0] for prompt in PROMPTS]
    engine = gpu.engine(**limits)
    requests = [ask(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]
    assert answers(engine, requests) == right
    if "num_blocks" in limits:
        assert sum(request.num_preemptions for request in requests) > 0, "the test must make them share too little"


def test_a_prefix_hit_is_as_good_as_computing(gpu, cpu):
    """The second request finds the first one's blocks."""
    right = answers(cpu.engine(), [ask("alone", PROMPTS[2])])
    engine = gpu.engine()
    assert answers(engine, [ask("first", PROMPTS[2])]) == right
    assert answers(engine, [ask("again", PROMPTS[2])]) == right


@pytest.mark.parametrize("seed", [1, -2])
def test_drawn_tokens_are_the_cpus(gpu, cpu, seed):
    """Every filter at once, several answers to one prompt, greedy and drawn side by side in one step."""

    def requests():
        drawn = {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": seed}
        a, b, c = PROMPTS[:3]
        return [ask("n", a, n=2, **drawn), ask("hot", b, temperature=2.5, seed=seed + 7), ask("cold", c)]

    assert answers(gpu.engine(), requests()) == answers(cpu.engine(), requests())


def test_what_the_device_cannot_draw_the_host_does(gpu, cpu):
    """Penalties and lists of log-probabilities: the same tokens by the other way."""

    def requests():
        a, b = PROMPTS[:2]
        return [ask("p", a, repetition_penalty=1.3, frequency_penalty=0.5), ask("l", b, logprobs=3)]

    assert answers(gpu.engine(), requests()) == answers(cpu.engine(), requests())


def test_logprobs_are_the_cpus(gpu, cpu):
    """The chosen token's log-probability, greedy and drawn."""

    def logprobs(served):
        engine = served.engine()
        for request in (ask("a", PROMPTS[0]), ask("b", PROMPTS[1], temperature=1.0, seed=5)):
            engine.add(request)
        return [(e.request_id, e.token_id, e.logprob) for e in engine.run()]

    got, want = logprobs(gpu), logprobs(cpu)
    assert [row[:2] for row in got] == [row[:2] for row in want]
    np.testing.assert_allclose([row[2] for row in got], [row[2] for row in want], rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("what", ["a larger step", "a larger cache"])
def test_no_graph_outlives_what_it_reads(cpu, what):
    """While an answer runs from a graph, a prompt larger than any step before moves the buffers, or a larger cache
    brings longer tables of rotations. What was recorded with the old addresses must not be replayed."""
    served = small("strict")
    engine = served.engine(num_blocks=10)
    first, second = ask("first", PROMPTS[1], 9), ask("second", PROMPTS[2], 1)
    engine.add(first)
    for _ in range(4):
        engine.step()
    if what == "a larger step":
        engine.add(second)
    else:
        served.ops.new_store(128, 4)
    engine.run()
    assert [first.output_ids] == answers(cpu.engine(), [ask("first", PROMPTS[1], 9)])


@needs_compiler
def test_the_meter_counts_a_graphs_work():
    """A replayed step is counted as if its operations had been called one by one, and by the same rules."""
    meters = Meter(), Meter()
    rooms = small("strict", meter=meters[0]), small("cpu", "reference", meter=meters[1])
    for room in rooms:
        answers(room.engine(), [ask(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS[:3])])
    assert meters[0].counts == meters[1].counts


@pytest.fixture(scope="module")
def strict():
    """A room of its own for the counts, which are the stand-in's."""
    return small("strict")


def decoding(served, count, warm_steps=3, **params):
    """An engine in the middle of `count` answers: prompts are done, and the graph has been recorded."""
    engine = served.engine(block_size=16)
    for i in range(count):
        engine.add(ask(f"r{i}", [*PROMPTS[0][:8], i], 30, **params))
    for _ in range(warm_steps):
        engine.step()
    return engine


@needs_compiler
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "drawn"])
def test_a_decode_step_is_one_launch_and_one_wait(strict, count, params):
    """No memory, no transfer, no waiting while it is launched; then one event. Inside the graph: 10 L + 4 kernels."""
    engine = decoding(strict, count, **params)
    machine.reset()
    engine.step()
    assert (machine.graph_launches, machine.launches, machine.allocations, machine.uploads) == (1, 0, 0, 0)
    assert (machine.syncs, machine.event_waits) == (1, 1)
    assert machine.graph_nodes == 10 * LAYERS + 4


@needs_compiler
def test_a_new_block_brings_one_table(strict):
    """Only where a sequence has gained a block does the host bring anything: the tables, and the slot behind them."""
    engine = decoding(strict, 2)
    uploads = []
    for _ in range(16):
        machine.reset()
        engine.step()
        uploads.append(machine.uploads)
        assert machine.allocations == 0
        assert machine.syncs == 1
    assert sorted(uploads) == [0] * 15 + [2]  # both in the same step


@needs_compiler
def test_without_graphs_the_kernels_are_the_same(strict):
    """`graphs=False`: as many launches as the graph had nodes, and the same tokens."""
    eager = small("strict", graphs=False)
    engine = decoding(eager, 3)
    machine.reset()
    engine.step()
    assert (machine.launches, machine.graph_launches, machine.allocations) == (10 * LAYERS + 4, 0, 0)
    tokens = [[r.output_ids for r in decoding(served, 3, 9).scheduler.running] for served in (eager, strict)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("count", [5, 17, BUCKETS[-1] + 1])
def test_every_bucket_and_more(gpu, cpu, count):
    """Batches that fill no bucket, and one beyond the largest, which runs without a graph."""
    right = answers(cpu.engine(), [ask("alone", PROMPTS[4], 3)])
    engine = gpu.engine(num_blocks=128, max_num_seqs=40)
    assert answers(engine, [ask(f"r{i}", PROMPTS[4], 3) for i in range(count)]) == right * count


@needs_compiler
def test_logits_that_are_no_numbers_end_their_request_only(strict):
    """A cache page gone bad: its own request ends with an error, its neighbour goes on."""
    engine = decoding(strict, 2)
    bad, good = engine.scheduler.running
    _, values = engine.executor.store.layer(1)
    block = bad.block_table[0]
    values[block * 16 : block * 16 + 4] = np.nan
    events = engine.step() + engine.step()
    assert "no usable logits" in {e.request_id: e.error for e in events if e.error}[bad.id]
    assert [r.id for r in engine.scheduler.running] == [good.id]

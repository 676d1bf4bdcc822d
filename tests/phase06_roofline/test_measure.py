"""Real steps with timers: what is attributed to what, that nothing stays behind, and what is refused."""

import numpy as np
import pytest

from minifer.device import select_device
from minifer.errors import CapacityError
from minifer.incremental import Incremental
from minifer.ops import reference
from minifer.roofline import measure, profile
from minifer.roofline.measure import Step, by_class, measure_step, null_overhead
from minifer.roofline.profile import Timers, places, timers_in
from tests.models import CONFIGS, ROOMS, Fixture, prompt_of

CONFIG = CONFIGS["smollm2"]


class Clock:
    """Stands in for the module `time`: every look at it is one second later."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        self.now += 10**9
        return self.now


def timers_on(clock, monkeypatch) -> Timers:
    """Timers that read this clock, from now on."""
    monkeypatch.setattr(profile, "time", clock)
    timers = Timers()
    timers.restart()
    return timers


def test_a_timer_inside_another_stops_it(monkeypatch):
    """Attention (one look before, one after) calls a product (likewise): none counts twice."""
    timers = timers_on(Clock(), monkeypatch)
    product = timers.wrap(lambda: None, "qkv")
    timers.wrap(product, "attention")()
    product()
    assert timers.ns == {"rest": 2e9, "attention": 2e9, "qkv": 2e9}
    assert timers.calls == {"attention": 1, "qkv": 2}


def test_waiting_belongs_to_what_was_waited_for(monkeypatch):
    """Before the first operation it is nobody's; after attention it is attention's, even if a rotation came between."""
    timers = timers_on(Clock(), monkeypatch)
    wait, attend, rotate, head = (timers.wrap(lambda: None, k) for k in ("waiting", "attention", "rope", "head"))
    for call in (wait, attend, wait, rotate, wait, head, wait):
        call()
    assert timers.waits == {"rest": 1e9, "attention": 2e9, "head": 1e9}
    parts, waits = by_class(timers)
    assert parts == {"linears": 0, "attention": 3, "head": 2, "other": 1 + 1 + 7}  # 7 looks between the calls
    assert waits == {"linears": 0, "attention": 2, "head": 1, "other": 1}


def test_arguments_and_results_pass_through():
    assert Timers().wrap(lambda a, b: a - b, "x")(5, b=3) == 2


@pytest.mark.parametrize("room", ["reference", "cpu-2"])
def test_timers_change_no_result_and_leave_no_trace(room):
    """The logits are the same bits with timers, and afterwards every attribute is what it was."""
    if room not in ROOMS:
        pytest.skip("this installation has no CPU room")
    model = Fixture(CONFIG, room)
    found = [(target, name) for target, name, _ in places(model.ops, model.weights)]
    before = [(target, name, getattr(target, name)) for target, name in found if hasattr(target, name)]
    assert before
    prompt = prompt_of(CONFIG, 5)
    plain = np.array(model.sequence().step(prompt))
    with timers_in(model.ops, model.weights) as timers:
        assert np.array_equal(model.sequence().step(prompt), plain)
    assert set(timers.calls) >= {"qkv", "attention", "output", "gate_up", "down", "head"}
    assert all(getattr(target, name) == value for target, name, value in before)
    assert np.array_equal(model.sequence().step(prompt), plain)
    model.close()


def test_timers_are_taken_out_after_an_error():
    model = Fixture(CONFIG)
    original = reference.linear

    def interrupted():
        with timers_in(model.ops, model.weights):
            assert reference.linear is not original
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reference.linear is original


@pytest.mark.parametrize("step", [Step(1, 1, 9), Step(3, 1, 6), Step(1, 7, 7), Step(2, 3, 8)], ids=str)
def test_a_measured_step_does_what_its_name_says(step):
    """The meter counts the tokens and the keys of exactly this step, in every repetition."""
    from minifer.meter import Meter

    meter = Meter()
    model = Fixture(CONFIG, meter=meter)
    found = measure_step(CONFIG, model.weights, model.ops, select_device("cpu"), step, repeats=3)
    runs = meter.counts["embed"].calls
    assert meter.counts["embed"].positions == runs * step.batch * step.length
    keys = sum(range(step.context - step.length + 1, step.context + 1))
    expected = 4 * CONFIG.num_hidden_layers * 9 * CONFIG.head_dim * keys * step.batch
    assert meter.counts["attention"].flops == runs * expected
    assert len(found.seconds) >= 3
    assert set(found.parts) == {"linears", "attention", "head", "other"}
    assert min(found.seconds) <= found.median_s <= max(found.seconds)
    assert found.timer_s > 0


def test_a_cache_beyond_the_limit_is_refused_before_it_is_made():
    """Batch 64 at context 2,048 of SmolLM2 would be 6.0 GB."""
    from minifer.hub import locate
    from minifer.model.config import ModelConfig

    config = ModelConfig.from_hf(locate("random:smollm2-135m").config)
    with pytest.raises(CapacityError, match=r"6\.04 GB .* 4 GB"):
        measure_step(config, None, None, select_device("cpu"), Step(64, 1, 2048))


def test_names_of_steps():
    assert [str(s) for s in (Step(1, 512, 512), Step(8, 1, 1024))] == ["prefill 512", "decode 8 at 1,024"]
    assert Step(2, 3, 8).work[0].context == 8


def test_overhead_is_measured_by_class_and_grows_with_the_batch_or_not_at_all():
    found = null_overhead(CONFIG, "reference", select_device("cpu"))
    assert set(found) == {"linears", "attention", "head", "other"}
    assert all(once > 0 and further >= 0 for once, further in found.values())


def test_the_timers_own_cost_is_small_and_not_negative():
    assert 0 <= measure.timer_seconds(200) < 1e-3


def test_a_sequence_still_decodes_after_a_measurement():
    """Measuring uses a cache of its own and leaves the weights alone."""
    model = Fixture(CONFIG)
    prompt = prompt_of(CONFIG, 6)
    expected = Incremental(model.weights, model.ops.new_store(1, 8), model.ops).step(prompt)
    measure_step(CONFIG, model.weights, model.ops, select_device("cpu"), Step(1, 1, 4), repeats=2)
    assert np.array_equal(Incremental(model.weights, model.ops.new_store(1, 8), model.ops).step(prompt), expected)

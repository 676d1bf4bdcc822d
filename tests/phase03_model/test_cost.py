"""Phase 03: what was predicted from the configuration equals what was counted from the arrays, for every family."""

import pytest

from minifer.hub import locate
from minifer.meter import Meter
from minifer.model.config import ModelConfig
from minifer.model.cost import LINEARS, Cost, Work, num_parameters, step_cost
from minifer.model.transformer import forward
from minifer.model.weights import build_weights
from minifer.ops.batch import make_batch
from tests.models import CONFIGS, ROOMS, Fixture, prompt_of, tensors_of

STEPS = {
    "prefill": [(23, 0)],
    "decode": [(1, 22)],
    "batch": [(1, 0), (1, 30), (1, 8)],
    "mixed": [(1, 17), (9, 4), (2, 0)],
}


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "cpu-invariant"])
@pytest.mark.parametrize("step", list(STEPS))
@pytest.mark.parametrize("name", list(CONFIGS))
def test_prediction_equals_count(name, step, room):
    config, meter = CONFIGS[name], Meter()
    model = Fixture(config, room, meter=meter)
    store = model.ops.new_store(24, 4)
    tables = [list(range(8 * i, 8 * i + 8)) for i in range(3)]
    sequences = [(prompt_of(config, n), past, table) for (n, past), table in zip(STEPS[step], tables, strict=False)]
    forward(model.weights, make_batch(sequences, 4), store, model.ops)
    predicted = step_cost(config, [Work(n, n + past) for n, past in STEPS[step]])
    counted = {k: Cost(c.calls, c.flops, c.bytes) for k, c in meter.counts.items()}
    assert counted == predicted
    model.close()


def smollm2() -> ModelConfig:
    return ModelConfig.from_hf(locate("random:smollm2-135m").config)


def test_smollm2_by_hand():
    config = smollm2()
    assert num_parameters(config) == 134_515_008
    assert config.kv_bytes_per_token == 46_080
    prefill = step_cost(config, [Work(512, 512)])
    linears = sum((prefill[name] for name in LINEARS if name != "head"), Cost()).flops
    assert linears == 2 * 512 * (134_515_008 - 49_152 * 576 - 61 * 576)
    assert prefill["attention"].flops == 4 * 30 * 9 * 64 * 512 * 513 // 2
    assert prefill["head"].flops == 2 * 49_152 * 576
    for context in (1, 1024):
        assert step_cost(config, [Work(1, context)])["attention"].flops == 69_120 * context


def test_decode_reads_every_weight_once_whatever_the_batch():
    config = smollm2()
    weights = 4 * (134_515_008 - 61 * 576)  # without the norms
    for batch in (1, 8):
        cost = step_cost(config, [Work(1, 1)] * batch)
        read = sum((cost[name] for name in LINEARS), Cost()).bytes
        activations = 4 * batch * (30 * (576 + 960 + 576 + 576 + 576 + 3072 + 1536 + 576) + 576 + 49_152)
        assert read == weights + activations


def test_intensity_of_decode_is_half_a_flop_per_byte():
    cost = sum(step_cost(smollm2(), [Work(1, 1)]).values(), Cost())
    assert cost.intensity == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_parameters_are_counted_once(name):
    config = CONFIGS[name]
    assert num_parameters(config) == build_weights(config, tensors_of(config)).num_parameters

"""What a decode step has to do, worked by hand for six configurations.

All but the last are small enough for a sheet of paper. Numbers are per step, in float32: a linear layer `[out, in]`
with n tokens does 2 * n * out * in FLOPs and moves 4 * (out * in + n * (in + out)) bytes, attention over S keys does
4 * H * D * S FLOPs and moves 4 * (2 * H * D + 2 * S * K * D) bytes.
"""

import pytest

from minifer.hub import locate
from minifer.model.config import ModelConfig
from minifer.model.cost import Cost, Work, num_parameters, step_cost
from minifer.roofline.predict import Roof, kv_traffic, predict_ops, weight_traffic

BASE = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip

#: name -> configuration, context, {operation: (FLOPs, bytes)}, parameters
BY_HAND = {
    # q, k and v are [8, 8] each, so qkv is [24, 8]; 5 keys of 2 heads of 4
    "every head its own keys": (
        {}, 5,
        {"qkv": (2 * 384, 2 * 4 * (192 + 32)), "attention": (2 * 160, 2 * 4 * (16 + 80)),
         "output": (2 * 128, 2 * 4 * (64 + 16)), "gate_up": (2 * 384, 2 * 4 * (192 + 32)),
         "down": (2 * 192, 2 * 4 * (96 + 20)), "head": (176, 4 * (88 + 19))},
        88 + 88 + 2 * (4 * 64 + 3 * 96 + 16) + 8,
    ),
    # four query heads of 2 share one kv head: k and v are [2, 8], and 5 keys are 20 numbers, not 80
    "grouped heads, tied embedding": (
        {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 2, "num_hidden_layers": 3,
         "tie_word_embeddings": True}, 5,
        {"qkv": (3 * 192, 3 * 4 * (96 + 20)), "attention": (3 * 160, 3 * 4 * (16 + 20)), "head": (176, 4 * (88 + 19))},
        88 + 3 * (64 + 16 + 16 + 64 + 288 + 16) + 8,
    ),
    # a bias is added (one FLOP per number) and read
    "bias on q, k and v": (
        {"attention_bias": True}, 1,
        {"qkv": (2 * (384 + 24), 2 * 4 * (192 + 24 + 32)), "output": (2 * 128, 2 * 4 * (64 + 16)),
         "attention": (2 * 32, 2 * 4 * (16 + 16))},
        88 + 88 + 2 * (4 * 64 + 24 + 3 * 96 + 16) + 8,
    ),
    # head_dim is not hidden / heads: q is [12, 8], so qkv is [36, 8] and the output [8, 12]
    "norm on each head, wide heads": (
        {"head_dim": 6, "qk_norm": True}, 7,
        {"qkv": (2 * 576, 2 * 4 * (288 + 44)), "output": (2 * 192, 2 * 4 * (96 + 20)),
         "attention": (2 * 4 * 2 * 6 * 7, 2 * 4 * (24 + 168)),
         "norm": (2 * (64 + 96) + 32, 4 * (2 * (2 * 24 + 2 * (24 + 6)) + 24))},
        88 + 88 + 2 * (4 * 96 + 12 + 3 * 96 + 16) + 8,
    ),
    # of 10 tokens it sees 3
    "a sliding window": (
        {"sliding_window": 3}, 10,
        {"attention": (2 * 4 * 2 * 4 * 3, 2 * 4 * (16 + 48)), "head": (176, 4 * (88 + 19))},
        88 + 88 + 2 * (4 * 64 + 3 * 96 + 16) + 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BY_HAND))
def test_a_decode_step_by_hand(name):
    changes, context, expected, parameters = BY_HAND[name]
    config = ModelConfig(**BASE | changes)
    found = step_cost(config, [Work(1, context)])
    assert {op: (found[op].flops, found[op].bytes) for op in expected} == expected
    assert num_parameters(config) == parameters
    ops = predict_ops(config, [Work(1, context)], Roof("", 100.0, 10.0))
    assert {op: (ops[op].cost.flops, ops[op].cost.bytes) for op in expected} == expected
    for op, (flops, num_bytes) in expected.items():
        assert ops[op].seconds == max(flops / 100, num_bytes / 10)


def smollm2() -> ModelConfig:
    return ModelConfig.from_hf(locate("random:smollm2-135m").config)


def test_smollm2_135m():
    """The sixth. With 9 heads instead of 3 kv heads the cache would seem three times as large as it is."""
    config = smollm2()
    assert num_parameters(config) == 134_515_008
    assert weight_traffic(config) == 4 * (134_515_008 - 61 * 576)  # the tied embedding once; norms are no matrices
    assert kv_traffic(config, 1) == config.kv_bytes_per_token == 46_080
    assert kv_traffic(config, 1, activation_bytes=2) == 23_040
    for context in (1, 128, 1024):
        whole = sum(step_cost(config, [Work(1, context)]).values(), Cost())
        matrices = 2 * (134_515_008 - 61 * 576)
        elementwise = 30 * (3 * 12 * 64 + 5 * 1536) + 61 * 4 * 576
        assert whole.flops == matrices + 69_120 * context + elementwise
    assert sum(step_cost(config, [Work(1, 1)]).values(), Cost()).intensity == pytest.approx(0.5, rel=0.01)


def test_causal_attention_counts_half_the_square():
    """4 tokens at once see 1 + 2 + 3 + 4 keys; with a window of 3 they see 1 + 2 + 3 + 3."""
    for window, pairs in ((None, 10), (3, 9)):
        config = ModelConfig(**BASE | {"sliding_window": window})
        assert step_cost(config, [Work(4, 4)])["attention"].flops == 2 * 4 * 2 * 4 * pairs

"""Phase 03: what distinguishes the families is data, and what minifer lacks is refused by name."""

import pytest

from minifer.errors import FormatError, UnsupportedError
from minifer.model.config import ModelConfig
from minifer.model.weights import build_weights, layer_shapes, tensor_shapes
from tests.models import CONFIGS, tensors_of

HF = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": [2, 5],
}
GGUF = {
    "general.architecture": "llama",
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 56,
    "llama.block_count": 3,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 3e-5,
    "llama.rope.freq_base": 500.0,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 5,
}


def test_the_two_kinds_of_file_say_the_same():
    hf = ModelConfig.from_hf(HF)
    gguf = ModelConfig.from_gguf({**GGUF, "tokenizer.ggml.bos_token_id": 1}, ["output.weight"], 61)
    assert hf == gguf
    assert hf.eos_token_ids == (2, 5)


def test_eos_ids_are_a_union_in_order():
    assert ModelConfig.from_hf(HF, {"eos_token_id": [5, 9]}).eos_token_ids == (2, 5, 9)
    assert ModelConfig.from_hf({**HF, "eos_token_id": None}, {"eos_token_id": 0}).eos_token_ids == (0,)


def test_explicit_head_dim_wins():
    config = ModelConfig.from_hf({**HF, "hidden_size": 1792, "num_attention_heads": 24, "head_dim": 128})
    shapes = tensor_shapes(config)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (24 * 128, 1792)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (1792, 24 * 128)
    gguf = {**GGUF, "llama.attention.key_length": 12, "llama.attention.value_length": 12}
    assert ModelConfig.from_gguf(gguf, [], 61).head_dim == 12


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_theta_and_epsilon_are_read(key):
    value = {"rms_norm_eps": 1e-6, "rope_theta": 1e6}[key]
    assert getattr(ModelConfig.from_hf({**HF, key: value}), key) == value


def test_newer_rope_parameters():
    new = {k: v for k, v in HF.items() if k != "rope_theta"}
    config = ModelConfig.from_hf({**new, "rope_parameters": {"rope_theta": 777.0, "rope_type": "default"}})
    assert (config.rope_theta, config.rope_scaling) == (777.0, None)
    llama3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
    for extra in (
        {"rope_parameters": {"rope_theta": 777.0, "rope_type": "llama3", **llama3}},
        {"rope_theta": 777.0, "rope_scaling": {"type": "llama3", **llama3}},
    ):
        got = ModelConfig.from_hf({**new, **extra})
        assert got.rope_theta == 777.0
        assert got.rope_scaling == {"rope_type": "llama3", **{k: float(v) for k, v in llama3.items()}}


@pytest.mark.parametrize(
    ("extra", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 7}, 7),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 7, "layer_types": ["full_attention"] * 3}, None),
        ({"model_type": "llama", "sliding_window": 7}, None),
    ],
)
def test_sliding_window(extra, window):
    assert ModelConfig.from_hf({**HF, **extra}).sliding_window == window


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ],
)
def test_what_is_not_supported_is_named(extra, named):
    with pytest.raises(UnsupportedError, match=named):
        ModelConfig.from_hf({**HF, **extra})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.dimension_count": 2}, "dimension_count"),
        ({"llama.attention.value_length": 2}, "value_length"),
    ],
)
def test_what_a_gguf_asks_in_vain_is_named(extra, named):
    with pytest.raises(UnsupportedError, match=named):
        ModelConfig.from_gguf({**GGUF, "llama.attention.key_length": 6, **extra}, [], 61)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "rope_theta"])
@pytest.mark.parametrize("value", [None, "12", 0, -3, 2**40, True, float("nan")])
def test_missing_and_impossible_values_are_named(key, value):
    if key == "rope_theta" and value in (2**40,):
        return
    with pytest.raises(FormatError, match=key):
        ModelConfig.from_hf({**HF, key: value})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 7}, "odd"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "impossible"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 2, "high_freq_factor": 2,
                           "original_max_position_embeddings": 64}}, "impossible"),
    ],
)  # fmt: skip
def test_contradictions_are_named(extra, named):
    with pytest.raises(FormatError, match=named):
        ModelConfig.from_hf({**HF, **extra})


def test_rope_factors_of_a_gguf():
    config = ModelConfig.from_gguf({**GGUF, "llama.attention.key_length": 6}, [], 61, [1.0, 2.0, 8.0])
    assert config.rope_scaling == {"rope_type": "factors", "factors": (1.0, 2.0, 8.0)}
    for bad in ([1.0, 2.0], [1.0, 0.0, 1.0], [1.0, float("nan"), 1.0]):
        with pytest.raises(FormatError, match="rope_freqs"):
            ModelConfig.from_gguf({**GGUF, "llama.attention.key_length": 6}, [], 61, bad)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_tensor_fills_exactly_one_place(name):
    config = CONFIGS[name]
    tensors = tensors_of(config)
    weights = build_weights(config, tensors)
    assert {id(a) for a in weights.arrays()} == {id(a) for a in tensors.values()}
    assert len(weights.arrays()) == len(tensors)
    assert set(layer_shapes(config)) == {f for f in layer_shapes(config) if getattr(weights.layers[0], f) is not None}


def test_tied_and_untied_heads():
    tied, untied = CONFIGS["llama3"], CONFIGS["llama2"]
    tensors = tensors_of(tied)
    both = {**tensors, "lm_head.weight": tensors["model.norm.weight"]}  # present although tied: ignored
    weights = build_weights(tied, both)
    assert weights.head is weights.embedding
    without = {k: v for k, v in tensors_of(untied).items() if k != "lm_head.weight"}
    with pytest.raises(FormatError, match=r"lacks 1 tensors: lm_head\.weight"):
        build_weights(untied, without)


def test_left_over_and_misshapen_tensors_are_named():
    config = CONFIGS["llama2"]
    with pytest.raises(FormatError, match="stray"):
        build_weights(config, {**tensors_of(config), "model.layers.3.stray": tensors_of(config)["model.norm.weight"]})
    wrong = {**tensors_of(config)}
    wrong["model.layers.1.self_attn.k_proj.weight"] = wrong["model.layers.1.self_attn.q_proj.weight"]
    with pytest.raises(FormatError, match=r"layers\.1\.self_attn\.k_proj"):
        build_weights(config, wrong)

"""Export: what other engines load is the very model that minifer ran, in their names, row order and metadata."""

import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from safetensors.numpy import load_file

from minifer.apps import export, export_vocab
from minifer.errors import MiniferError, UnsupportedError, UsageError
from minifer.formats.gguf import read_gguf
from minifer.formats.hf_names import permute
from minifer.formats.tensors import open_checkpoint
from minifer.model.load import Model, load_model
from minifer.model.weights import build_weights
from minifer.ops.reference import rope_frequencies
from minifer.tokenizer import Tokenizer
from tests.models import CONFIGS, Fixture, prompt_of, tensors_of

# Qwen3 has no bias on the output projection in llama.cpp; that combination is refused, see below.
EXPORTED = {name: replace(config, output_bias=False) for name, config in CONFIGS.items()}


def model_of(config, name="toy", tokenizer_path=None):
    return Model(name, config, build_weights(config, tensors_of(config)), tokenizer_path)


def logits_of(model):
    fixture = Fixture(model.config)
    fixture.weights = fixture.ops.prepare(model.weights)
    return fixture.sequence().step(prompt_of(model.config, 7), all_logits=True)


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_there_and_back_is_the_same_model(tmp_path, name, to):
    model = model_of(EXPORTED[name])
    path = tmp_path / ("m.gguf" if to == "gguf" else "m")
    {"gguf": export.export_gguf, "hf": export.export_hf}[to](model, path, "F32")
    back = load_model(str(path))
    tensors, original = export.hf_tensors(back), export.hf_tensors(model)
    assert all(np.array_equal(tensors[key], values) for key, values in original.items())
    assert not [key for key in tensors.keys() - original.keys() if np.any(tensors[key])]  # added biases are zero
    np.testing.assert_allclose(logits_of(back), logits_of(model), rtol=0, atol=1e-5)


def test_a_gguf_file_as_its_own_library_sees_it(tmp_path):
    """Names, shapes, and the row order: K by its 2 heads, Q by its 8, V as it was."""
    config = EXPORTED["llama2"]
    model = model_of(config)
    export.export_gguf(model, tmp_path / "m.gguf", "F32")
    reader = GGUFReader(tmp_path / "m.gguf")
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    layer = model.weights.layers[1]
    assert np.array_equal(stored["blk.1.attn_q.weight"], permute(layer.wq, 8))
    assert np.array_equal(stored["blk.1.attn_k.weight"], permute(layer.wk, 2))
    assert np.array_equal(stored["blk.1.attn_v.weight"], layer.wv)
    assert np.array_equal(stored["output.weight"], model.weights.head)
    values = {key: field.contents() for key, field in reader.fields.items()}
    assert values["general.architecture"] == "llama"
    assert values["llama.attention.head_count"] == 8
    assert values["llama.attention.head_count_kv"] == 2
    assert values["llama.attention.key_length"] == values["llama.rope.dimension_count"] == 6
    assert values["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(3e-5)
    assert values["llama.rope.freq_base"] == 500.0


def test_bfloat16_rounds_as_the_library_does_and_leaves_vectors_alone(tmp_path):
    model = model_of(EXPORTED["smollm2"])
    export.export_gguf(model, tmp_path / "m.gguf", "BF16")
    export.export_hf(model, tmp_path / "m", "BF16")
    info = read_gguf(tmp_path / "m.gguf").tensors
    assert info["blk.0.ffn_up.weight"].type_name == "BF16"
    assert info["blk.0.attn_norm.weight"].type_name == "F32"
    up = model.weights.layers[0].w_up
    rounded = quants.dequantize(quants.quantize(up, GGMLQuantizationType.BF16), GGMLQuantizationType.BF16)
    assert np.array_equal(open_checkpoint(tmp_path / "m").tensors()["model.layers.0.mlp.up_proj.weight"], rounded)
    assert np.array_equal(read_gguf(tmp_path / "m.gguf").load("blk.0.ffn_up.weight"), rounded)


def test_a_folder_as_its_own_library_sees_it(tmp_path):
    model = model_of(replace(EXPORTED["smollm2"], eos_token_ids=(3, 5), bos_token_id=1))
    export.export_hf(model, tmp_path / "m", "F32")
    theirs = load_file(tmp_path / "m" / "model.safetensors")
    assert all(np.array_equal(theirs[name], values) for name, values in export.hf_tensors(model).items())
    assert "lm_head.weight" not in theirs
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["torch_dtype"] == "float32"
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text())["eos_token_id"] == [3, 5]


# -------------------------------------------------------------------------------------------------- what families say


def test_llama3_rope_goes_from_rule_to_factors_and_back():
    rule = export.LLAMA3_RULE | {"factor": 32.0, "original_max_position_embeddings": export.LLAMA3_CONTEXT}
    factors = export.rope_factors(64, 500000.0, rule)
    assert factors.min() == 1
    assert factors.max() == pytest.approx(32)
    plain = rope_frequencies(64, 500000.0)
    np.testing.assert_allclose(plain / factors, rope_frequencies(64, 500000.0, rule), rtol=1e-12)
    stored = tuple(float(factor) for factor in factors.astype(np.float32))
    scaling = {"rope_type": "factors", "factors": stored}
    config = replace(EXPORTED["llama2"], head_dim=64, rope_theta=500000.0, rope_scaling=scaling)
    found = export.hf_config(config, "F32")["rope_scaling"]
    assert found == {**rule, "factor": pytest.approx(32)}
    bent = {"rope_type": "factors", "factors": (*stored[:-1], stored[-1] * 1.01)}
    with pytest.raises(UnsupportedError, match="Llama 3"):
        export.hf_config(replace(config, rope_scaling=bent), "F32")


@pytest.mark.parametrize(
    ("changes", "family"), [({}, "llama"), ({"sliding_window": 7}, "mistral"), ({"qk_norm": True}, "qwen3")]
)
def test_a_model_is_named_after_the_family_it_belongs_to(changes, family):
    config = export.hf_config(replace(EXPORTED["llama2"], **changes), "F32")
    assert config["model_type"] == family
    assert config["architectures"] == [export.HF_CLASSES[family]]


def test_biases_that_a_family_always_has_are_written_as_zeros(tmp_path):
    model = model_of(replace(EXPORTED["llama2"], attention_bias=True))
    export.export_hf(model, tmp_path / "m", "F32")
    added = load_file(tmp_path / "m" / "model.safetensors")["model.layers.0.self_attn.o_proj.bias"]
    assert added.shape == (model.config.hidden_size,)
    assert not added.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "attention_bias": True},
        {"model_type": "qwen2", "attention_bias": True, "output_bias": True},
        {"model_type": "qwen2", "qk_norm": True},
    ],
)
def test_what_a_family_never_has_is_refused_in_a_folder(changes):
    with pytest.raises(UnsupportedError):
        export.hf_config(replace(EXPORTED["llama2"], **changes), "F32")


def test_what_llama_cpp_never_reads_is_refused_in_a_gguf_file(tmp_path):
    with pytest.raises(UnsupportedError, match="bias on the output projection"):
        export.export_gguf(model_of(CONFIGS["qwen3"]), tmp_path / "m.gguf", "F32")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------- vocabularies


def test_a_vocabulary_as_gguf_metadata(tiny_path):
    tokenizer = json.loads((tiny_path / "tokenizer.json").read_text("utf-8"))
    size = len(tokenizer["model"]["vocab"]) + 3
    config = replace(EXPORTED["llama2"], vocab_size=size, bos_token_id=0, eos_token_ids=(2, 1))
    found = export_vocab.gguf_vocabulary(tiny_path, config)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == size
    assert len(set(tokens)) == size
    assert all(tokens[index] == token for token, index in tokenizer["model"]["vocab"].items())
    special = {added["id"] for added in tokenizer["added_tokens"] if added["special"]}
    assert {i for i, kind in enumerate(types) if kind == export_vocab.CONTROL} == special
    assert types[-3:] == [export_vocab.UNUSED] * 3
    assert found["tokenizer.ggml.merges"][0] == " ".join(tokenizer["model"]["merges"][0])
    assert found["tokenizer.ggml.pre"] == "smollm"
    assert (found["tokenizer.ggml.eos_token_id"], found["tokenizer.ggml.eot_token_id"]) == (2, 1)
    assert "im_start" in found["tokenizer.chat_template"]


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
        {"model": {"type": "Unigram"}},
        {"model": {"type": "BPE", "byte_fallback": True, "vocab": {}, "merges": []}},
    ],
)
def test_a_vocabulary_that_gguf_cannot_express_is_refused(tiny_path, tmp_path, change):
    tokenizer = json.loads((tiny_path / "tokenizer.json").read_text("utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer | change), "utf-8")
    config = replace(EXPORTED["llama2"], vocab_size=len(tokenizer["model"]["vocab"]))
    with pytest.raises(UnsupportedError, match="cannot be written as GGUF"):
        export_vocab.gguf_vocabulary(tmp_path, config)


def test_a_vocabulary_of_the_same_kind_is_copied(tiny_path, tmp_path):
    export.export_hf(model_of(EXPORTED["llama2"], tokenizer_path=tiny_path), tmp_path / "m", "F32")
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == (tiny_path / "tokenizer.json").read_bytes()
    config = replace(EXPORTED["llama2"], vocab_size=1200, bos_token_id=0, eos_token_ids=(2,))
    export.export_gguf(model_of(config, tokenizer_path=tiny_path), tmp_path / "a.gguf", "F32")
    export.export_gguf(model_of(config, tokenizer_path=tmp_path / "a.gguf"), tmp_path / "b.gguf", "F32")
    assert read_gguf(tmp_path / "a.gguf").metadata == read_gguf(tmp_path / "b.gguf").metadata


TEXTS = [
    "Once upon a time, there was a cat.",
    "I'm 12345  years\n\nold",
    "caf\u00e9 \U0001f999 <|im_end|>",
    " \t x",
    "",
]
TURNS = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Yes."}]


def test_a_vocabulary_means_the_same_in_both_formats(tiny_path, tmp_path):
    """Folder -> GGUF -> folder: three tokenizers, the same ids."""
    config = replace(EXPORTED["llama2"], vocab_size=1200, bos_token_id=0, eos_token_ids=(2,))
    export.export_gguf(model_of(config, tokenizer_path=tiny_path), tmp_path / "m.gguf", "F32")
    export.export_hf(model_of(config, tokenizer_path=tmp_path / "m.gguf"), tmp_path / "m", "F32")
    first, *others = [Tokenizer.from_pretrained(path) for path in (tiny_path, tmp_path / "m.gguf", tmp_path / "m")]
    for other in others:
        for text in TEXTS:
            assert other.encode(text) == first.encode(text)
            assert other.encode(text, allow_special=True) == first.encode(text, allow_special=True)
        assert other.apply_chat_template(TURNS) == first.apply_chat_template(TURNS)
        assert (other.bos_id, other.special_tokens) == (first.bos_id, first.special_tokens)


# ------------------------------------------------------------------------------------------------------------ failures


def occupied(path):
    path.write_text("mine")
    return path


@pytest.mark.parametrize("write", [export.export_gguf, export.export_hf])
def test_what_is_there_is_not_overwritten(tmp_path, write):
    path = occupied(tmp_path / "m")
    with pytest.raises(UsageError, match="exists already"):
        write(model_of(EXPORTED["llama2"]), path, "F32")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("write", [export.export_gguf, export.export_hf])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_an_export_that_breaks_off_leaves_nothing(tmp_path, write, interruption):
    def interrupt(what, done, total):
        if done > total // 2:
            raise interruption

    expected = KeyboardInterrupt if interruption is KeyboardInterrupt else MiniferError
    with pytest.raises(expected):
        write(model_of(EXPORTED["llama2"]), tmp_path / "m", "F32", interrupt)
    assert os.listdir(tmp_path) == []

"""Names and row orders: the same weights as GGUF and as safetensors are the same arrays in the end."""

import numpy as np
import pytest

from minifer.errors import FormatError, UnsupportedError
from minifer.formats.hf_names import permute, rope_heads, to_gguf, to_hf, unpermute
from minifer.formats.tensors import open_checkpoint
from minifer.formats.write_safetensors import write_safetensors
from tests.phase03_model.build_files import gguf, llama_tensors, scalar, text


def test_k_is_permuted_by_its_own_heads():
    """The famous bug: with Q's head count the order differs, unless heads / kv heads happens to equal kv heads."""
    assert permute(np.arange(16), 2).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert permute(np.arange(16), 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (4, 8), (6, 24), (9, 64), (8, 2)])
def test_unpermute_is_the_inverse(heads, head_dim):
    for shape in [(heads * head_dim, 5), (heads * head_dim,)]:
        rows = np.random.default_rng(heads).standard_normal(shape)
        assert np.array_equal(unpermute(permute(rows, heads), heads), rows)
        assert head_dim == 2 or not np.array_equal(permute(rows, heads), rows)


@pytest.mark.parametrize(("rows", "heads"), [(16, 3), (16, 16), (6, 2), (16, 0), (16, -2)])
def test_rows_that_no_heads_fit_are_refused(rows, heads):
    with pytest.raises(FormatError, match=f"{rows} rows"):
        unpermute(np.arange(rows), heads)


def test_names_go_there_and_back():
    names = ["token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"]
    parts = ["attn_q", "attn_k", "attn_v", "attn_output", "attn_norm", "attn_q_norm", "attn_k_norm"]
    parts += ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    names += [f"blk.{layer}.{part}.{kind}" for layer in (0, 31) for part in parts for kind in ("weight", "bias")]
    assert [to_gguf(to_hf(name)) for name in names] == names
    assert len({to_hf(name) for name in names}) == len(names)


FOREIGN = ["blk.0.ffn_gate_exps.weight", "blk.0.attn_qkv.weight", "blk.0.attn_q.scale", "v.blk.0.attn_q.weight"]
FOREIGN += ["blk.x.attn_q.weight", "blk.0.attn_q.weight\n", "blk.².attn_q.weight", ""]


@pytest.mark.parametrize("name", FOREIGN)
def test_tensors_of_other_architectures_are_refused_by_name(name):
    with pytest.raises(UnsupportedError) as caught:
        to_hf(name)
    assert repr(name) in str(caught.value)


def llama_metadata(heads: int, kv_heads: int, architecture: str = "llama") -> dict[str, bytes]:
    return {
        "general.architecture": text(architecture),
        f"{architecture}.attention.head_count": scalar("u32", heads),
        f"{architecture}.attention.head_count_kv": scalar("u32", kv_heads),
    }


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 2), (8, 2), (9, 3)])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_both_containers_give_the_same_arrays(tmp_path, heads, kv_heads, architecture):
    tensors = llama_tensors(heads=heads, kv_heads=kv_heads)
    if architecture == "qwen2":
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.arange(heads * 8, dtype=np.float32)
    stored = {}
    for name, values in tensors.items():
        count = rope_heads(name, heads, kv_heads) if architecture == "llama" else 0
        stored[to_gguf(name)] = permute(values, count) if count else values
    (tmp_path / "m.gguf").write_bytes(gguf(llama_metadata(heads, kv_heads, architecture), stored))
    (tmp_path / "config.json").write_text("{}")
    layout = {name: ("F32", values.shape) for name, values in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", layout, tensors.values())
    from_gguf, from_folder = open_checkpoint(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert from_gguf.shapes() == from_folder.shapes() == {name: values.shape for name, values in tensors.items()}
    for checkpoint in (from_gguf, from_folder):
        loaded = checkpoint.tensors()
        assert all(np.array_equal(loaded[name], values) for name, values in tensors.items())


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (0, 2), (6, 0), (6, 5)])
def test_impossible_head_counts_in_the_metadata(tmp_path, heads, kv_heads):
    stored = {to_gguf(name): values for name, values in llama_tensors().items()}
    (tmp_path / "m.gguf").write_bytes(gguf(llama_metadata(heads, kv_heads), stored))
    with pytest.raises(FormatError):
        open_checkpoint(tmp_path / "m.gguf").tensors()


def test_no_head_counts_at_all(tmp_path):
    stored = {to_gguf(name): values for name, values in llama_tensors().items()}
    (tmp_path / "m.gguf").write_bytes(gguf({"general.architecture": text("llama")}, stored))
    with pytest.raises(FormatError, match="head_count=None"):
        open_checkpoint(tmp_path / "m.gguf").tensors()


def test_one_part_of_a_split_file_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf({"split.count": scalar("u16", 3)}, {}))
    with pytest.raises(UnsupportedError, match="llama-gguf-split"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_saved_frequencies_of_old_checkpoints_are_passed_over(tmp_path):
    tensors = {
        "model.norm.weight": np.ones(4, np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    write_safetensors(
        tmp_path / "model.safetensors", {name: ("F32", a.shape) for name, a in tensors.items()}, tensors.values()
    )
    (tmp_path / "config.json").write_text("{}")
    assert list(open_checkpoint(tmp_path).tensors()) == ["model.norm.weight"]

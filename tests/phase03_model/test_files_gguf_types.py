"""Quantised tensors: our float32 equals the format's own NumPy code, block by block, for every type there is."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

from minifer.errors import UnsupportedError
from minifer.formats.gguf import TENSOR_TYPES, bfloat16_to_float32, read_gguf
from tests.phase03_model.build_files import header, tensor_info

DEQUANTISED = sorted(kind.name for kind in quants._type_traits)
NOT_DEQUANTISED = sorted({name for name, _, _ in TENSOR_TYPES.values()} - set(DEQUANTISED) - {"F32", "F16"})


def test_our_table_of_types_agrees_with_the_library():
    """The library may know more (a newer version), never something else."""
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {number: theirs.get(number, row) for number, row in TENSOR_TYPES.items()} == TENSOR_TYPES
    assert set(TENSOR_TYPES) >= {kind.value for kind in quants._type_traits}


@pytest.mark.parametrize("name", DEQUANTISED)
def test_random_blocks_of_every_type(tmp_path, name):
    """Any bytes are a valid block. Two rows of two blocks, compared as bits: random scales give NaN and inf too."""
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(kind.value).integers(0, 256, (2, 2 * size), dtype=np.uint8)
    head = header(0, 1) + tensor_info("t", [2 * block, 2], kind.value, 0)
    path = tmp_path / "t.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + raw.tobytes())
    loaded = read_gguf(path).load("t")
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, kind)
    assert loaded.shape == (2, 2 * block)
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "tolerance"), [("F32", 0), ("F16", 1e-3), ("BF16", 8e-3), ("Q8_0", 0.02), ("Q4_1", 0.2)]
)
def test_written_by_the_library_and_read_by_us(tmp_path, name, tolerance):
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    writer = GGUFWriter(tmp_path / "w.gguf", "llama")
    packed = quants.quantize(values, kind)
    writer.add_tensor("t", packed, raw_dtype=kind if packed.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "w.gguf")
    assert file.tensors["t"].type_name == name
    assert np.abs(file.load("t") - values).max() <= tolerance


@pytest.mark.parametrize("name", NOT_DEQUANTISED)
def test_a_type_that_has_no_float32_form_is_refused_by_name(tmp_path, name):
    number, block, size = next((n, b, s) for n, (other, b, s) in TENSOR_TYPES.items() if other == name)
    head = header(0, 1) + tensor_info("blk.0.attn_q.weight", [block], number, 0)
    path = tmp_path / "t.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(size))
    file = read_gguf(path)
    with pytest.raises(UnsupportedError, match=rf"blk\.0\.attn_q\.weight.*{name}"):
        file.load("blk.0.attn_q.weight")


def test_bfloat16_is_the_upper_half_of_float32():
    bits = np.array([0x3F80, 0xC049, 0x7F80, 0xFF80, 0x0001, 0x8000, 0x7FC0], "<u2")
    values = bfloat16_to_float32(bits)
    assert values[:4].tolist() == [1.0, -3.140625, np.inf, -np.inf]
    assert values[4] == np.float32(9.1835e-41)
    assert values[5] == 0
    assert np.signbit(values[5])
    assert np.isnan(values[6])


def test_a_float32_tensor_is_a_view_of_the_file_and_cannot_be_written(tmp_path):
    head = header(0, 1) + tensor_info("t", [4], 0, 0)
    path = tmp_path / "t.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + np.arange(4, dtype="<f4").tobytes())
    loaded = read_gguf(path).load("t")
    assert not loaded.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        loaded[0] = 1

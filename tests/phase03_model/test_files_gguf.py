"""GGUF headers: what is right is read, what is wrong is refused before it costs anything."""

import itertools
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minifer.errors import FormatError, MiniferError, ModelNotFoundError, UnsupportedError
from minifer.formats.gguf import read_gguf
from tests.phase03_model.build_files import array, gguf, header, scalar, string, tensor_info, text

RNG = np.random.default_rng(7)
TENSORS = {"a.weight": RNG.standard_normal((3, 5), np.float32), "b.bias": RNG.standard_normal(7, np.float32)}
METADATA = {
    "general.architecture": text("llama"),
    "llama.block_count": scalar("u32", 2),
    "llama.rope.freq_base": scalar("f32", 10000.0),
    "small": scalar("i8", -3),
    "flag": scalar("bool", True),
    "big": scalar("u64", 2**60),
    "tokens": array("string", ["<s>", "Ġthe", "", "🦙"]),
    "types": array("i32", [3, 1, -1]),
}


NUMBERS = itertools.count()


def save(folder: Path, data: bytes) -> Path:
    """A new name each time: a file that is still mapped cannot be overwritten on Windows."""
    path = folder / f"{next(NUMBERS)}.gguf"
    path.write_bytes(data)
    return path


def padded_tail(tensors: bytes = b"", data: bytes = bytes(64)) -> bytes:
    """A file of one tensor entry given as bytes, and 64 bytes of data."""
    head = header(0, 1) + tensors
    return head + bytes(-len(head) % 32) + data


def test_all_kinds_of_values_and_tensors_are_read(tmp_path):
    file = read_gguf(save(tmp_path, gguf(METADATA, TENSORS)))
    assert file.version == 3
    assert file.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "small": -3,
        "flag": True,
        "big": 2**60,
        "tokens": ["<s>", "Ġthe", "", "🦙"],
        "types": [3, 1, -1],
    }
    for name, values in TENSORS.items():
        assert file.tensors[name].shape == values.shape
        assert np.array_equal(file.load(name), values)


def test_nested_arrays_are_read_and_bounded(tmp_path):
    def nested(depth: int) -> bytes:
        value = array("u8", [1, 2])
        for _ in range(depth):
            value = struct.pack("<IIQ", 9, 9, 1) + value[4:]
        return gguf({"nested": value}, {})

    assert read_gguf(save(tmp_path, nested(2))).metadata["nested"] == [[[1, 2]]]
    with pytest.raises(FormatError, match="nested"):
        read_gguf(save(tmp_path, nested(1000)))


def test_every_cut_is_found(tmp_path):
    whole = gguf(METADATA, TENSORS)
    for length in range(len(whole)):
        with pytest.raises(FormatError):
            read_gguf(save(tmp_path, whole[:length]))
    read_gguf(save(tmp_path, whole))


@pytest.mark.parametrize("alignment", [16, 64, None])
@pytest.mark.parametrize("padding", range(32))
def test_alignment_is_honoured(tmp_path, alignment, padding):
    """Three 16-byte tensors behind headers of 32 different lengths each read back themselves."""
    metadata = {"padding": text("x" * padding)}
    if alignment:
        metadata["general.alignment"] = scalar("u32", alignment)
    tensors = {f"t{i}": np.arange(4, dtype=np.float32) + 10 * i for i in range(3)}
    file = read_gguf(save(tmp_path, gguf(metadata, tensors, alignment or 32)))
    assert file.data_start % (alignment or 32) == 0
    for name, values in tensors.items():
        assert file.load(name).tolist() == values.tolist()


@pytest.mark.parametrize(
    "value",
    [scalar("u32", 0), scalar("i32", -32), scalar("u32", 12), scalar("f32", 32.0), text("32"), scalar("bool", True)],
)
def test_impossible_alignment_is_refused(tmp_path, value):
    with pytest.raises(FormatError, match=r"general\.alignment"):
        read_gguf(save(tmp_path, gguf({"general.alignment": value}, TENSORS)))


HUGE = struct.pack("<Q", 2**60)
HOSTILE = {
    "string length": header(1, 0) + HUGE + b"x" * 100,
    "string value": header(1, 0) + string("k") + struct.pack("<I", 8) + HUGE,
    "array of numbers": header(1, 0) + string("k") + struct.pack("<II", 9, 0) + HUGE + bytes(100),
    "array of doubles": header(1, 0) + string("k") + struct.pack("<IIQ", 9, 12, 2**61 + 1) + bytes(100),
    "array of strings": header(1, 0) + string("k") + struct.pack("<II", 9, 8) + HUGE + bytes(100),
    "array of arrays": header(1, 0) + string("k") + struct.pack("<II", 9, 9) + HUGE + bytes(100),
    "tensor count": header(0, 2**60) + bytes(100),
    "metadata count": header(2**60, 0) + bytes(100),
    "tensor name": header(0, 1) + HUGE + bytes(100),
    "n_dims": header(0, 1) + string("t") + struct.pack("<I", 2**31) + bytes(100),
    "five dims": padded_tail(string("t") + struct.pack("<I5QIQ", 5, 1, 1, 1, 1, 1, 0, 0)),
    "no dims": padded_tail(string("t") + struct.pack("<IIQ", 0, 0, 0)),
    "dim zero": padded_tail(tensor_info("t", [4, 0], 0, 0)),
    "product wraps": padded_tail(tensor_info("t", [2**42 + 1, 2**22], 0, 0)),
    "product wraps to 0": padded_tail(tensor_info("t", [2**32, 2**32], 0, 0)),
    "beyond the end": padded_tail(tensor_info("t", [4], 0, 64)),
    "offset wraps": padded_tail(tensor_info("t", [4], 0, 2**64 - 32)),
    "crooked offset": padded_tail(tensor_info("t", [4], 0, 4)),
    "half a block": padded_tail(tensor_info("t", [33], 8, 0)),
    "unknown value type": header(1, 0) + string("k") + struct.pack("<IQ", 99, 0),
    "not UTF-8": header(1, 0) + string("k") + text(b"\xff\xfe"),
    "key twice": header(2, 0) + 2 * (string("k") + scalar("u32", 1)),
    "tensor twice": header(0, 2) + tensor_info("t", [4], 0, 0) + tensor_info("t", [4], 0, 32) + bytes(100),
    "shared bytes": header(0, 2) + tensor_info("t", [16], 0, 0) + tensor_info("u", [4], 0, 32) + bytes(150),
    "other magic": b"GGML" + bytes(100),
    "empty": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers_are_refused_and_cost_nothing(tmp_path, what):
    path = save(tmp_path, HOSTILE[what])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(0, 0, version=4), "version 4"),
        (header(0, 0, version=0), "version 0"),
        (padded_tail(tensor_info("strange", [4], 4, 0)), "'strange' has the unknown type number 4"),
    ],
)
def test_what_minifer_lacks_is_named(tmp_path, data, word):
    with pytest.raises(UnsupportedError, match=word):
        read_gguf(save(tmp_path, data))


def test_version_1_has_32_bit_lengths_and_version_2_is_like_3(tmp_path):
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    head = b"GGUF" + struct.pack("<III", 1, 1, 1)  # version, tensors, entries
    head += struct.pack("<I", 1) + b"k" + struct.pack("<IIII", 9, 8, 1, 2) + b"hi"
    head += struct.pack("<I", 1) + b"t" + struct.pack("<IIIIQ", 2, 3, 2, 0, 0)
    first = read_gguf(save(tmp_path, head + bytes(-len(head) % 32) + values.tobytes()))
    assert first.metadata == {"k": ["hi"]}
    assert first.load("t").tolist() == values.tolist()
    second = bytearray(gguf(METADATA, TENSORS))
    second[4] = 2
    assert read_gguf(save(tmp_path, bytes(second))).version == 2


def test_missing_file_and_missing_tensor(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.gguf"):
        read_gguf(tmp_path / "nowhere.gguf")
    file = read_gguf(save(tmp_path, gguf({}, TENSORS)))
    with pytest.raises(FormatError, match=r"c\.weight"):
        file.load("c.weight")


WHOLE = gguf(METADATA, TENSORS)


@settings(deadline=None, max_examples=150)
@given(edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_is_an_error_of_ours_or_harmless(tmp_path_factory, edits):
    data = bytearray(WHOLE)
    for place, byte in edits:
        data[place] = byte
    try:
        file = read_gguf(save(tmp_path_factory.mktemp("damaged"), bytes(data)))
        for name in file.tensors:
            file.load(name)
    except MiniferError:
        pass


SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda n: (scalar("i64", n), n)),
    st.floats(allow_nan=False).map(lambda x: (scalar("f64", x), x)),
    st.booleans().map(lambda b: (scalar("bool", b), b)),
    st.text(max_size=20).map(lambda s: (text(s), s)),
    st.lists(st.text(max_size=5), max_size=5).map(lambda a: (array("string", a), a)),
    st.lists(st.integers(0, 65535), max_size=5).map(lambda a: (array("u16", a), a)),
)


@settings(deadline=None, max_examples=60)
@given(entries=st.dictionaries(st.text(max_size=10).filter(lambda k: k != "general.alignment"), SCALARS, max_size=6))
def test_any_metadata_is_read_back(tmp_path_factory, entries):
    data = gguf({key: packed for key, (packed, _) in entries.items()}, TENSORS)
    file = read_gguf(save(tmp_path_factory.mktemp("random"), data))
    assert file.metadata == {key: value for key, (_, value) in entries.items()}
    assert np.array_equal(file.load("b.bias"), TENSORS["b.bias"])


@pytest.mark.model
def test_the_default_model_is_read_as_its_own_library_reads_it(smollm2_path):
    from gguf import GGUFReader

    ours, theirs = read_gguf(smollm2_path), GGUFReader(smollm2_path)
    assert [(t.name, t.tensor_type.name, t.data_offset) for t in theirs.tensors] == [
        (info.name, info.type_name, info.start) for info in ours.tensors.values()
    ]
    assert {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    } == ours.metadata

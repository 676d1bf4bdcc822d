"""safetensors files and folders: read like the library reads them, refused when a single byte does not add up."""

import itertools
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from minifer.errors import FormatError, MiniferError, ModelNotFoundError, UnsupportedError
from minifer.formats.safetensors import open_folder, read_safetensors
from minifer.formats.tensors import open_checkpoint
from minifer.formats.write_safetensors import float32_to_bfloat16, write_safetensors
from tests.phase03_model.build_files import entry, safetensors

RNG = np.random.default_rng(3)
WHOLE = safetensors({"a": entry([2, 3], 0, 24), "b": entry([2], 24, 32)}, np.arange(8, dtype="<f4").tobytes())


NUMBERS = itertools.count()


def save(folder: Path, data: bytes, name: str = "") -> Path:
    """A new name each time where none is given: a mapped file cannot be overwritten on Windows."""
    path = folder / (name or f"{next(NUMBERS)}.safetensors")
    path.write_bytes(data)
    return path


def test_what_the_library_writes_we_read(tmp_path):
    tensors = {
        "f32": RNG.standard_normal((3, 4)).astype(np.float32),
        "f16": RNG.standard_normal((5,)).astype(np.float16),
        "f64": RNG.standard_normal((2, 2, 2)),
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    file = read_safetensors(tmp_path / "model.safetensors")
    assert file.metadata == {"format": "pt"}
    for name, values in tensors.items():
        assert file.load(name).dtype == np.float32
        assert np.array_equal(file.load(name), values.astype(np.float32))


def test_what_we_write_the_library_reads(tmp_path):
    arrays = {"x": RNG.standard_normal((3, 4)).astype(np.float32), "y": RNG.standard_normal(7).astype(np.float32)}
    path = tmp_path / "w.safetensors"
    write_safetensors(
        path, {name: ("F32", a.shape) for name, a in arrays.items()}, arrays.values(), metadata={"k": "v"}
    )
    theirs = load_file(path)
    assert all(np.array_equal(theirs[name], arrays[name]) for name in arrays)
    ours = read_safetensors(path)
    assert all(entry.start % 4 == 0 for entry in ours.entries.values())
    assert ours.entries["x"].start % 64 == 0


def test_bfloat16_there_and_back(tmp_path):
    bits = np.array([0x3F80, 0xC049, 0x7F80, 0xFF80, 0x0001, 0x8000], "<u2")
    file = read_safetensors(save(tmp_path, safetensors({"t": entry([6], 0, 12, "BF16")}, bits.tobytes())))
    values = file.load("t")
    assert values[:4].tolist() == [1.0, -3.140625, np.inf, -np.inf]
    assert values[4] == np.float32(9.1835e-41)
    assert np.array_equal(float32_to_bfloat16(values), bits)


def test_an_odd_header_length_is_no_problem(tmp_path):
    header = json.dumps({"t": entry([3], 0, 12)}).encode()
    for blanks in range(8):
        values = read_safetensors(
            save(tmp_path, safetensors(header + b" " * blanks, struct.pack("<3f", 1, 2, 3)))
        ).load("t")
        assert values.tolist() == [1, 2, 3]
        assert values.flags.aligned


def test_every_cut_is_found(tmp_path):
    for length in range(len(WHOLE)):
        with pytest.raises(FormatError):
            read_safetensors(save(tmp_path, WHOLE[:length]))
    with pytest.raises(FormatError, match="the file has"):
        read_safetensors(save(tmp_path, WHOLE + b"x"))
    assert read_safetensors(save(tmp_path, WHOLE)).load("b").tolist() == [6, 7]


HOSTILE = {
    "no bytes": b"",
    "header longer than the file": safetensors({}, length=2**40),
    "header over 100 MB": safetensors({}, length=100_000_001),
    "no JSON": safetensors(b"{'a': 1}"),
    "no UTF-8": safetensors(b'{"\xff": 1}'),
    "a list": safetensors([]),
    "deep nesting": safetensors(b"[" * 100_000),
    "deep objects": safetensors(b'{"a":' * 100_000),
    "a number of 5,000 digits": safetensors(b'{"a": ' + b"9" * 5000 + b"}"),
    "key twice": safetensors(b'{"a": {}, "a": {}}'),
    "entry is a number": safetensors({"a": 1}),
    "no dtype": safetensors({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "three offsets": safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
    "shape is a word": safetensors({"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}, bytes(4)),
    "negative dim": safetensors({"a": entry([-1, -1], 0, 4)}, bytes(4)),
    "dim zero": safetensors({"a": entry([0], 0, 0)}),
    "dim is true": safetensors({"a": entry([True], 0, 4)}, bytes(4)),
    "dim is 1.0": safetensors({"a": entry([1.0], 0, 4)}, bytes(4)),  # type: ignore[list-item]
    "product wraps": safetensors({"a": entry([2**42 + 1, 2**22], 0, 4 * 4194304)}, bytes(64)),
    "backwards": safetensors({"a": entry([1], 4, 0)}, bytes(4)),
    "beyond the end": safetensors({"a": entry([2], 0, 8)}, bytes(4)),
    "too few bytes for the shape": safetensors({"a": entry([2], 0, 4)}, bytes(4)),
    "shared bytes": safetensors({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, bytes(8)),
    "a gap": safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
    "a gap in front": safetensors({"a": entry([1], 4, 8)}, bytes(8)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers_are_refused_and_cost_little(tmp_path, what):
    path = save(tmp_path, HOSTILE[what])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            read_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000 + 20 * len(HOSTILE[what])
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", ["I64", "U8", "BOOL", "F8_E4M3"])
def test_a_dtype_that_is_no_float_is_named(tmp_path, dtype):
    width = {"I64": 8}.get(dtype, 1)
    file = read_safetensors(save(tmp_path, safetensors({"ids": entry([2], 0, 2 * width, dtype)}, bytes(2 * width))))
    with pytest.raises(UnsupportedError, match=f"'ids' has the dtype {dtype}"):
        file.load("ids")


def test_an_unknown_dtype_is_named(tmp_path):
    with pytest.raises(UnsupportedError, match="F4"):
        read_safetensors(save(tmp_path, safetensors({"a": entry([2], 0, 1, "F4")}, bytes(1))))


@settings(deadline=None, max_examples=100)
@given(edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_damage_is_an_error_of_ours_or_harmless(tmp_path_factory, edits):
    data = bytearray(WHOLE)
    for place, byte in edits:
        data[place] = byte
    try:
        file = read_safetensors(save(tmp_path_factory.mktemp("damaged"), bytes(data)))
        for name in file.names():
            file.load(name)
    except MiniferError:
        pass


# ---------------------------------------------------------------------------------------------- folders with shards


def shards(folder: Path, weight_map: object) -> Path:
    """Two shards (a, b) and (c, stray), and an index with this weight map."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save(folder, safetensors({"a": entry([1], 0, 4), "b": entry([1], 4, 8)}, struct.pack("<2f", 1, 2)), one)
    save(folder, safetensors({"c": entry([1], 0, 4), "stray": entry([1], 4, 8)}, struct.pack("<2f", 3, 4)), two)
    index = {"metadata": {"total_size": 12}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
GOOD = {"a": ONE, "b": ONE, "c": TWO}


def test_exactly_the_weight_map_is_loaded(tmp_path):
    folder = shards(tmp_path, GOOD)
    save(folder, b"not even a safetensors file", "extra.safetensors")
    opened = open_folder(folder)
    assert {name: opened.load(name).tolist() for name in opened.names()} == {"a": [1], "b": [2], "c": [3]}


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({**GOOD, "d": ONE}, f"d .in {ONE}"),
        ({**GOOD, "c": ONE}, f"c .in {ONE}"),
        ({**GOOD, "d": "model-00003-of-00003.safetensors", "e": "x.safetensors"}, "model-00003.*x"),
        ({**GOOD, "d": "../secret.safetensors"}, r"\.\./secret"),
        ({**GOOD, "d": "/etc/secret.safetensors"}, "/etc/secret"),
        ({**GOOD, "d": "..\\secret.safetensors"}, "secret"),
        ({**GOOD, "d": "C:secret.safetensors"}, "secret"),
        ({**GOOD, "d": "pytorch_model.bin"}, "pytorch_model"),
        ({**GOOD, "d": 3}, "3"),
        ({}, "weight_map"),
        ([], "weight_map"),
        (None, "weight_map"),
    ],
)
def test_a_wrong_weight_map_says_what_is_wrong(tmp_path, weight_map, words):
    inside = tmp_path / "model"
    inside.mkdir()
    save(tmp_path, WHOLE, "secret.safetensors")
    with pytest.raises(FormatError, match=words):
        open_folder(shards(inside, weight_map))


def test_a_cut_shard_is_found_before_anything_is_loaded(tmp_path):
    folder = shards(tmp_path, GOOD)
    data = (folder / TWO).read_bytes()
    save(folder, data[:-1], TWO)
    with pytest.raises(FormatError, match=TWO):
        open_folder(folder)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "config.json"),
        ({"a.gguf": "x"}, r"config\.json; give the path of the file itself.*a\.gguf"),
        ({"config.json": "{}"}, r"neither model\.safetensors nor"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "pickle"),
    ],
)
def test_a_folder_that_is_not_a_model(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelNotFoundError, match=words):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"vocab_size": ', "\ufeff{}", '{"a": 1, "a": 2}'])
def test_a_damaged_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content, "utf-8")
    save(tmp_path, WHOLE, "model.safetensors")
    with pytest.raises(FormatError, match=r"config\.json"):
        open_checkpoint(tmp_path)

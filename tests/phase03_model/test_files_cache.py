"""What minifer writes is there as a whole or not at all; and a second start reads what the first one computed."""

import errno
import hashlib
import logging
import os
import shutil

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

from minifer.errors import MiniferError, UsageError
from minifer.formats import cache, digest
from minifer.formats.atomic import atomic_file, atomic_folder
from minifer.formats.cache import cached_float32, float32_tensors, worth_caching
from minifer.formats.gguf import read_gguf
from minifer.formats.hf_names import permute, rope_heads, to_gguf
from minifer.formats.tensors import open_checkpoint
from tests.phase03_model.build_files import gguf, llama_tensors, scalar, text


@pytest.fixture
def quantised(tmp_path):
    """A small Llama, most of it in Q8_0, Q and K in llama.cpp's order, as its own library writes it."""
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    for name, values in llama_tensors().items():
        count = rope_heads(name, 6, 2)
        stored = permute(values, count) if count else values
        kind = GGMLQuantizationType.F32 if stored.shape[-1] % 32 else GGMLQuantizationType.Q8_0
        writer.add_tensor(to_gguf(name), quants.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def test_first_and_second_start_give_the_same_arrays(quantised, tmp_path, monkeypatch):
    told = []
    first = cached_float32(quantised, tmp_path / "c", lambda *news: told.append(news))
    assert told[-1][1] == told[-1][2] == sum(array.nbytes for array in first.values())
    monkeypatch.setattr(cache, "float32_tensors", lambda *_: pytest.fail("the second start computed again"))
    second = cached_float32(quantised, tmp_path / "c")
    original = llama_tensors()
    assert list(first) == list(second) == list(original)
    for name, values in original.items():
        assert np.array_equal(first[name], second[name])
        assert np.abs(first[name] - values).max() < 0.02
        assert not second[name].flags.owndata
        assert not second[name].flags.writeable


def test_the_cache_follows_the_contents_not_the_name(quantised, tmp_path):
    cached_float32(quantised, tmp_path / "c")
    moved = tmp_path / "moved.gguf"
    shutil.copy(quantised.path, moved)
    cached_float32(read_gguf(moved), tmp_path / "c")
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 1
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(bytes(data))
    cached_float32(read_gguf(other), tmp_path / "c")
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 2


DAMAGE = [lambda data: data[:-1], lambda data: data[:0], lambda data: data[:100], lambda data: data + b"x"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_again(quantised, tmp_path, damage):
    path = cache.cache_path(quantised.path, tmp_path / "c")
    path.parent.mkdir(exist_ok=True)
    expected = dict(float32_tensors(quantised))
    cached_float32(quantised, tmp_path / "other")
    made = next((tmp_path / "other").glob("*.safetensors"))
    path.write_bytes(damage(made.read_bytes()))
    loaded = cached_float32(quantised, tmp_path / "c")
    assert all(np.array_equal(loaded[name], values) for name, values in expected.items())


def files_of(folder):
    """All files but the remembered digests, which are of use without the rest."""
    return [p for p in folder.rglob("*") if p.is_file() and p.parent.name != "digests"]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_from_the_start(monkeypatch):
    usage = shutil._ntuple_diskusage(100, 100, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda *_: usage)


def full_in_the_middle(monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)


@pytest.mark.parametrize("disk", [full_from_the_start, full_in_the_middle])
def test_a_full_disk_leaves_no_half_file(quantised, tmp_path, monkeypatch, disk):
    disk(monkeypatch)
    with pytest.raises(MiniferError, match=r"could not be written.*free some space"):
        cached_float32(quantised, tmp_path / "c")
    assert files_of(tmp_path / "c") == []


@pytest.mark.parametrize("disk", [full_from_the_start, full_in_the_middle])
def test_a_model_is_usable_without_room_for_its_cache(quantised, tmp_path, monkeypatch, caplog, disk):
    disk(monkeypatch)
    with caplog.at_level(logging.WARNING):
        loaded = open_checkpoint(quantised.path).tensors(tmp_path / "c")
    assert "going on in memory" in caplog.text
    assert all(np.array_equal(loaded[name], values) for name, values in float32_tensors(quantised))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_no_half_file(quantised, tmp_path, interruption):
    def interrupt(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise interruption

    with pytest.raises(interruption):
        cached_float32(quantised, tmp_path / "c", interrupt)
    assert files_of(tmp_path / "c") == []


def test_plain_files_are_not_cached(tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf({}, {to_gguf(name): values for name, values in llama_tensors().items()}))
    assert not worth_caching(read_gguf(tmp_path / "m.gguf"))
    meta = {
        "general.architecture": text("llama"),
        "llama.attention.head_count": scalar("u32", 6),
        "llama.attention.head_count_kv": scalar("u32", 2),
    }
    (tmp_path / "n.gguf").write_bytes(gguf(meta, {to_gguf(name): values for name, values in llama_tensors().items()}))
    open_checkpoint(tmp_path / "n.gguf").tensors(tmp_path / "c")
    assert not (tmp_path / "c").exists()


# ------------------------------------------------------------------------------------------------------- digests


def test_a_digest_is_computed_once_and_again_after_a_change(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert digest.file_sha256(path, tmp_path / "d") == hashlib.sha256(b"abc").hexdigest()
    read = []
    monkeypatch.setattr(hashlib, "file_digest", lambda file, *_: read.append(1) or hashlib.sha256(file.read()))
    digest.file_sha256(path, tmp_path / "d")
    assert not read
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert digest.file_sha256(path, tmp_path / "d") == hashlib.sha256(b"abd").hexdigest()
    assert read


@pytest.mark.parametrize("note", ["", "abc", "z" * 64, "\xff" * 64])
def test_a_damaged_note_is_not_believed(tmp_path, note):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / digest.quick_key(path)).write_text(note, "latin-1")
    assert digest.file_sha256(path, tmp_path / "d") == hashlib.sha256(b"abc").hexdigest()


def test_a_digest_needs_no_place_to_write(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert digest.file_sha256(path, path / "not a folder") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(MiniferError, match="gone"):
        digest.file_sha256(tmp_path / "gone")


# ---------------------------------------------------------------------------------------------------- atomic.py


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="stop"), atomic_file(path) as file:  # noqa: PT012
        file.write(b"new")
        raise ValueError("stop")
    assert path.read_bytes() == b"old"
    with atomic_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path):
    with pytest.raises(ValueError, match="stop"), atomic_folder(tmp_path / "m") as folder:  # noqa: PT012
        (folder / "a").write_text("a")
        raise ValueError("stop")
    assert os.listdir(tmp_path) == []
    (tmp_path / "m").mkdir()
    with atomic_folder(tmp_path / "m") as folder:
        (folder / "a").write_text("a")
    assert (tmp_path / "m" / "a").read_text() == "a"
    with pytest.raises(UsageError, match="exists already"), atomic_folder(tmp_path / "m"):
        pass
    assert os.listdir(tmp_path) == ["m"]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "in the way").write_text("x")
    with pytest.raises(MiniferError, match="in the way"), atomic_file(tmp_path / "in the way" / "f"):
        pass

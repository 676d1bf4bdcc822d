"""safetensors, the container of Hugging Face: a JSON header, then the bytes of the tensors without any gap.

    offset 0      length of the header, u64 little-endian
    offset 8      header: {"name": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}, ...}
    8 + length    data; the offsets count from here

The header is refused unless every byte of the data belongs to exactly one tensor. That one rule finds a file that was
cut short, a file with something appended, tensors that share bytes, and shapes that do not fit their bytes.

Large models come as several such files ("shards") and an index, `model.safetensors.index.json`, whose `weight_map`
says which tensor is in which file. The index is the contract: exactly its pairs are loaded, whatever else lies in the
folder. A file name in it is a claim too, and must be a plain name, since `../../secret` would lead out of the folder.

Not here: pickled checkpoints (`pytorch_model.bin`), since to read a pickle is to run it; and 8-bit or integer weights.

Source: https://github.com/huggingface/safetensors#format
"""

import itertools
import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minifer.errors import FormatError, ModelNotFoundError, UnsupportedError
from minifer.formats.gguf import bfloat16_to_float32
from minifer.formats.mapped import map_file

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
MAX_JSON_BYTES = 100_000_000  # config.json has a few kilobytes, the index of a very large model a few megabytes

# Bytes per element. All have a place in a file; FLOATS can become float32.
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class Entry:
    """One tensor of the header; `start` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    """A checked header and the file mapped behind it."""

    path: Path
    entries: dict[str, Entry] = field(repr=False)
    metadata: dict[str, str]
    data: mmap.mmap = field(repr=False)

    def names(self) -> list[str]:
        return list(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def load(self, name: str) -> np.ndarray:
        """The tensor as float32; F32 is a read-only view of the file (a copy only where the bytes lie crooked).

        Raises FormatError for an unknown name, UnsupportedError for a dtype that is no 16-, 32- or 64-bit float.
        """
        entry = self._entry(name)
        if entry.dtype not in FLOATS:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} has the dtype {entry.dtype}; minifer reads {', '.join(FLOATS)}"
            )
        dtype = np.dtype(FLOATS[entry.dtype])
        array = np.frombuffer(self.data, dtype, entry.nbytes // dtype.itemsize, entry.start).reshape(entry.shape)
        if entry.dtype == "BF16":
            return bfloat16_to_float32(array)
        return np.require(array, np.float32, "A")

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise FormatError(f"{self.path}: there is no tensor named {name!r} among its {len(self.entries)}")
        return self.entries[name]


def read_safetensors(path: str | Path) -> SafetensorsFile:
    """Parse and check the header of one .safetensors file; map its data.

    Raises ModelNotFoundError, FormatError (cut short, damaged, hostile) or UnsupportedError (unknown dtype).
    """
    path = Path(path)
    data = map_file(path)
    if len(data) < 8:
        raise FormatError(f"{path}: {len(data)} bytes are too few for a safetensors file; copy or download it again")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise FormatError(f"{path}: a header of {length} bytes announced, but only {len(data) - 8} bytes follow")
    header = parse_object(data[8 : 8 + length], str(path))
    metadata = header.pop("__metadata__", {})
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_extents(path, entries, 8 + length, len(data))
    return SafetensorsFile(path, entries, metadata if isinstance(metadata, dict) else {}, data)


def _entry(path: Path, name: str, value: Any, data_start: int) -> Entry:
    """Check one value of the header on its own: its form, its dtype, and that shape and bytes agree."""
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"{path}: the entry of tensor {name!r} lacks dtype, shape or data_offsets") from None
    if any(type(number) is not int or number < 0 for number in numbers) or 0 in shape:
        raise FormatError(f"{path}: tensor {name!r} has the shape {shape} and the offsets {[begin, end]}")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise UnsupportedError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != nbytes:
        raise FormatError(f"{path}: tensor {name!r} of shape {shape} needs {nbytes} bytes and has {end - begin}")
    return Entry(dtype, tuple(shape), data_start + begin, nbytes)


def _check_extents(path: Path, entries: dict[str, Entry], data_start: int, size: int) -> None:
    """Every byte from `data_start` to the end of the file belongs to exactly one tensor."""
    in_file_order = sorted(entries.items(), key=lambda item: item[1].start)
    ends = [entry.start + entry.nbytes for _, entry in in_file_order]
    for (name, entry), expected in zip(in_file_order, itertools.chain([data_start], ends), strict=False):
        if entry.start != expected:
            raise FormatError(f"{path}: tensor {name!r} begins at byte {entry.start}, and {expected} was expected")
    end = ends[-1] if ends else data_start
    if end != size:
        raise FormatError(f"{path}: the tensors end at byte {end}, but the file has {size}; it is damaged or cut short")


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """JSON that must be an object and must not name a key twice.

    >>> parse_object(b'{"vocab_size": 49152}', "config.json")
    {'vocab_size': 49152}
    >>> parse_object(b'{"a": 1, "a": 2}', "config.json")
    Traceback (most recent call last):
    minifer.errors.FormatError: config.json: the key 'a' comes twice in one object
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FormatError(f"{where}: the key {key!r} comes twice in one object")
            found[key] = value
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise FormatError(f"{where}: not valid JSON ({reason}); the file is damaged or cut short") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: a JSON object was expected, and this is a {type(value).__name__}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file such as config.json. Raises ModelNotFoundError or FormatError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FormatError(f"{path}: {path.stat().st_size} bytes, more than the {MAX_JSON_BYTES} that minifer reads")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_object(data, str(path))


@dataclass(frozen=True)
class SafetensorsFolder:
    """The weights of a Hugging Face folder: exactly the (tensor, file) pairs that the folder declares."""

    path: Path
    where: dict[str, SafetensorsFile] = field(repr=False)

    def names(self) -> list[str]:
        return list(self.where)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).shape(name)

    def load(self, name: str) -> np.ndarray:
        return self._file(name).load(name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self.where:
            raise FormatError(f"{self.path}: there is no tensor named {name!r} among its {len(self.where)}")
        return self.where[name]


def open_folder(path: str | Path) -> SafetensorsFolder:
    """Open `model.safetensors`, or else the shards that `model.safetensors.index.json` lists.

    Raises ModelNotFoundError when the folder holds neither, FormatError when a listed file or tensor is absent.
    """
    path = Path(path)
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        file = read_safetensors(single)
        return SafetensorsFolder(path, dict.fromkeys(file.entries, file))
    if not index.exists():
        pickled = "; its pytorch_model.bin is a pickle, which minifer does not run" if _has_pickle(path) else ""
        raise ModelNotFoundError(f"{path}: holds neither model.safetensors nor model.safetensors.index.json{pickled}")
    return SafetensorsFolder(path, dict(_resolve(path, read_json(index), str(index))))


def _has_pickle(path: Path) -> bool:
    return any(path.glob("*.bin"))


def _resolve(path: Path, index: dict[str, Any], where: str) -> Iterator[tuple[str, SafetensorsFile]]:
    """Pairs (tensor, open file) for each line of the weight map, after all files and tensors were found."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{where}: weight_map is missing or empty")
    file_names = sorted({_plain_name(name, where) for name in weight_map.values()})
    if absent := [name for name in file_names if not (path / name).is_file()]:
        raise FormatError(f"{where}: files listed but not in the folder: {', '.join(absent)}; download them again")
    files = {name: read_safetensors(path / name) for name in file_names}
    if absent := [f"{name} (in {file})" for name, file in weight_map.items() if name not in files[file].entries]:
        raise FormatError(f"{where}: tensors listed but not in their files: {', '.join(absent)}")
    return ((name, files[file]) for name, file in weight_map.items())


def _plain_name(name: Any, where: str) -> str:
    """A file name that stays in its folder.

    >>> _plain_name("model-00001-of-00002.safetensors", "index")
    'model-00001-of-00002.safetensors'
    >>> _plain_name("../other/model.safetensors", "index")
    Traceback (most recent call last):
    minifer.errors.FormatError: index: the file name '../other/model.safetensors' is not a plain *.safetensors name
    """
    if not isinstance(name, str) or not name.endswith(".safetensors") or set(name) & set("/\\:\0"):
        raise FormatError(f"{where}: the file name {name!r} is not a plain *.safetensors name")
    return name

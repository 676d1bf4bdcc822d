"""GGUF, the container of llama.cpp: one file with everything, read here from the first byte.

    offset 0   magic "GGUF" | version u32 | number of tensors u64 | number of metadata entries u64
               metadata:  key string | value type u32 | value              (hyperparameters, the whole vocabulary)
               tensors:   name string | n_dims u32 | dims u64 ... | type u32 | offset u64
               padding to `general.alignment` (32 unless the file says otherwise)
    data_start the tensors' bytes, each at its own offset from here

All numbers are little-endian. A string is its length (u64) and then UTF-8. An array is an element type, a count, the
elements. Dimensions stand fastest first, so GGUF's `[576, 1536]` is NumPy's shape `(1536, 576)`: the same bytes.

Three thoughts shape the parser, and they fit every binary format:

* **A count is a claim.** A file of 160 bytes can claim 2**60 strings. Each count is compared with the bytes that are
  left (a string needs at least its 8 length bytes) *before* memory is asked for, so no file can cost more memory than
  a small multiple of its own size.
* **Products are taken in Python integers**, which do not wrap: in 64-bit arithmetic the dims `[2**42 + 1, 2**22]` seem
  to be only 4,194,304 elements.
* **Everything is checked before anything is computed.** Where each tensor begins and ends is known from the header, so
  a file that lost its tail is refused at once and not after minutes in the middle of layer 20.

Quantised tensors hold blocks: `Q4_1` is 32 weights of 4 bits each with one float16 scale and one float16 minimum, 20
bytes in all. `GGUFFile.load` turns them into float32 with `gguf.quants`, the NumPy code that llama.cpp itself ships.

Not here: the meaning of the metadata (`model/config.py`, `tokenizer/vocab.py`), the names of the tensors
(`hf_names.py`), writing (`export.py`), big-endian files (refused with a message).

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import itertools
import math
import mmap
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from minifer.errors import FormatError, UnsupportedError
from minifer.formats.mapped import map_file

# Value type number -> struct code of the scalar. 8 is a string and 9 an array: these two have their own functions.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# Tensor type number -> (name, weights per block, bytes per block); the gaps are types that llama.cpp has removed.
TENSOR_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

MAX_DIMS = 4
MAX_NESTING = 4  # arrays in arrays in arrays; real files have one level


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: `shape` in NumPy order, `start` and `nbytes` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    type_id: int
    start: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A checked header, and the file mapped behind it. Nothing of the weights has been read yet."""

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, TensorInfo] = field(repr=False)
    data_start: int
    data: mmap.mmap = field(repr=False)

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes as `[rows..., bytes per row]` uint8, a read-only view of the file."""
        info = self._info(name)
        flat = np.frombuffer(self.data, np.uint8, info.nbytes, info.start)
        _, block, size = TENSOR_TYPES[info.type_id]
        return flat.reshape(*info.shape[:-1], info.shape[-1] // block * size)

    def load(self, name: str) -> np.ndarray:
        """The tensor as float32 in NumPy's order (rows first); F32 is a read-only view, all else is computed.

        Raises FormatError when the file has no such tensor, UnsupportedError (with the type's name) for a type that
        `gguf.quants` cannot turn into float32.
        """
        info, raw = self._info(name), self.raw(name)
        if info.type_name == "F32":
            return raw.view("<f4")
        if info.type_name == "F16":
            return raw.view("<f2").astype(np.float32)
        if info.type_name == "BF16":
            return bfloat16_to_float32(raw.view("<u2"))
        return _dequantise(info, raw)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise FormatError(f"{self.path}: there is no tensor named {name!r} among its {len(self.tensors)}")
        return self.tensors[name]


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 is the upper half of a float32: shift it up and read it again. No library needed.

    >>> bfloat16_to_float32(np.array([0x3F80, 0xC049, 0x8000], np.uint16)).tolist()
    [1.0, -3.140625, -0.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _dequantise(info: TensorInfo, raw: np.ndarray) -> np.ndarray:
    from gguf import GGMLQuantizationType, quants  # a slow import, and an F32 file does without it

    try:
        with np.errstate(over="ignore", invalid="ignore"):  # damaged scales give inf or NaN; the logits' check tells
            return quants.dequantize(raw, GGMLQuantizationType(info.type_id))
    except (NotImplementedError, ValueError):
        raise UnsupportedError(
            f"tensor {info.name!r} has the type {info.type_name}, which cannot be turned into float32; "
            "use a file quantised in another way (Q4_K, Q8_0, F16 ...)"
        ) from None


def read_gguf(path: str | Path) -> GGUFFile:
    """Parse and check the whole header of a GGUF file; map its data.

    Raises ModelNotFoundError when there is no file, FormatError when it is truncated, damaged or hostile, and
    UnsupportedError when it is whole but of a version, byte order or tensor type that minifer does not know.
    """
    path = Path(path)
    cursor = Cursor(map_file(path), path)
    version = _read_version(cursor)
    tensor_count, entry_count = cursor.length(), cursor.length()
    width = struct.calcsize("<" + cursor.count_code)
    cursor.claim("tensors", tensor_count, width + 4 + width + 4 + 8)  # empty name, n_dims, one dim, type, offset
    cursor.claim("metadata entries", entry_count, width + 4 + 1)  # empty key, type, a value of one byte
    metadata = _read_metadata(cursor, entry_count)
    alignment = _alignment(cursor, metadata)
    listed = [_read_tensor_info(cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.pos // alignment) * alignment
    tensors = _place(cursor, listed, data_start, alignment)
    return GGUFFile(path, version, alignment, metadata, tensors, data_start, cursor.buf)


class Cursor:
    """A place in the file that moves forward; every read first makes sure that the bytes are there."""

    def __init__(self, buf: mmap.mmap, path: Path):
        self.buf, self.path, self.pos, self.size = buf, path, 0, len(buf)
        self.count_code = "Q"  # version 1 had 32-bit lengths, counts and dims

    def fail(self, what: str) -> NoReturn:
        raise FormatError(f"{self.path}: {what} (at byte {self.pos} of {self.size}); the file is damaged or cut short")

    def claim(self, what: str, count: int, smallest: int) -> None:
        """Refuse a count that the rest of the file cannot hold, each element taking `smallest` bytes or more."""
        if count * smallest > self.size - self.pos:
            self.fail(f"{count} {what} announced, but only {self.size - self.pos} bytes follow")

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        """`count` numbers of one kind, named by its code in `struct`."""
        layout = struct.Struct(f"<{count}{code}")
        if layout.size > self.size - self.pos:
            self.fail(f"{layout.size} bytes expected, but only {self.size - self.pos} follow")
        self.pos += layout.size
        return layout.unpack_from(self.buf, self.pos - layout.size)

    def u32(self) -> int:
        return self.scalars("I")[0]

    def length(self) -> int:
        return self.scalars(self.count_code)[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings. A vocabulary has 100,000 of them, so this loop keeps to local names: 0.03 s."""
        layout = struct.Struct("<" + self.count_code)
        width, unpack, buf, pos, size = layout.size, layout.unpack_from, self.buf, self.pos, self.size
        self.claim("strings", count, width)
        out: list[str] = []
        try:
            for _ in range(count):
                start = pos + width
                pos = start + unpack(buf, pos)[0]
                if pos > size:
                    self.pos = start
                    self.fail(f"a string of {pos - start} bytes announced, but only {size - start} follow")
                out.append(buf[start:pos].decode())
        except struct.error:
            self.fail("the list of strings breaks off")
        except UnicodeDecodeError as error:
            self.fail(f"a string is not valid UTF-8 ({error.reason})")
        self.pos = pos
        return out

    def value(self, kind: int, depth: int = 0) -> Any:
        """One metadata value of the type `kind`: a number, a bool, a string, or a list of these."""
        if kind in SCALARS:
            return self.scalars(SCALARS[kind])[0]
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(depth)
        self.fail(f"value type {kind} is unknown")

    def array(self, depth: int) -> list[Any]:
        """An array inside `depth` others: element type, count, elements."""
        kind, count = self.u32(), self.length()
        if kind in SCALARS:
            self.claim("numbers", count, struct.calcsize("<" + SCALARS[kind]))
            return list(self.scalars(SCALARS[kind], count))
        if kind == STRING:
            return self.strings(count)
        if depth >= MAX_NESTING:
            self.fail(f"arrays are nested more than {MAX_NESTING} deep")
        self.claim("arrays", count, 4 + struct.calcsize("<" + self.count_code))
        return [self.value(kind, depth + 1) for _ in range(count)]


def _read_version(cursor: Cursor) -> int:
    magic = cursor.buf[:4]
    if magic != b"GGUF":
        raise FormatError(f"{cursor.path}: not a GGUF file: it begins with {magic!r}, and 'GGUF' was expected")
    cursor.pos = 4
    version = cursor.u32()
    if version and version % 0x1000000 == 0:  # 3 written by a big-endian machine reads 0x03000000
        raise UnsupportedError(f"{cursor.path}: a big-endian GGUF file; convert it to little-endian first")
    if version not in (1, 2, 3):
        raise UnsupportedError(f"{cursor.path}: GGUF version {version} is unknown; versions 1, 2 and 3 can be read")
    if version == 1:
        cursor.count_code = "I"
    return version


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} comes twice")
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        cursor.fail(f"general.alignment is {alignment!r}, and must be a positive multiple of 8")
    return alignment


def _read_tensor_info(cursor: Cursor) -> TensorInfo:
    """One entry of the tensor list; `start` still counts from the start of the data."""
    name, n_dims = cursor.string(), cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"tensor {name!r} has {n_dims} dimensions, and must have 1 to {MAX_DIMS}")
    dims = cursor.scalars(cursor.count_code, n_dims)
    type_id, offset = cursor.u32(), cursor.scalars("Q")[0]
    if min(dims) < 1:
        cursor.fail(f"tensor {name!r} has the dimensions {list(dims)}, and each must be at least 1")
    if type_id not in TENSOR_TYPES:
        raise UnsupportedError(f"{cursor.path}: tensor {name!r} has the unknown type number {type_id}")
    type_name, block, block_bytes = TENSOR_TYPES[type_id]
    if dims[0] % block:
        cursor.fail(f"tensor {name!r} has rows of {dims[0]}, no multiple of the {block} weights in a {type_name} block")
    return TensorInfo(name, dims[::-1], type_name, type_id, offset, math.prod(dims) // block * block_bytes)


def _place(cursor: Cursor, listed: list[TensorInfo], data_start: int, alignment: int) -> dict[str, TensorInfo]:
    """Turn offsets into places in the file: every tensor aligned, inside the file, and on bytes of its own."""
    tensors: dict[str, TensorInfo] = {}
    for info in listed:
        if info.name in tensors:
            cursor.fail(f"the tensor {info.name!r} comes twice")
        if info.start % alignment:
            cursor.fail(f"tensor {info.name!r} has the offset {info.start}, no multiple of the alignment {alignment}")
        start = data_start + info.start
        if start + info.nbytes > cursor.size:
            cursor.fail(f"tensor {info.name!r} ends at byte {start + info.nbytes}, beyond the end of the file")
        tensors[info.name] = replace(info, start=start)
    in_file_order = sorted(tensors.values(), key=lambda info: info.start)
    for left, right in itertools.pairwise(in_file_order):
        if left.start + left.nbytes > right.start:
            cursor.fail(f"the tensors {left.name!r} and {right.name!r} share bytes")
    return tensors

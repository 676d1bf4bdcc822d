"""Writing the format that `safetensors.py` reads, one tensor at a time.

All sizes are known from the shapes, so the header is written first and the tensors follow as they are made: a model
larger than the memory can be written. The header is padded with blanks, which JSON ignores, so that the data begins at
a multiple of 64 bytes and arrays mapped from it are as well aligned as NumPy's own.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from minifer.errors import FormatError
from minifer.formats.atomic import Progress, atomic_file, no_progress

WIDTH = {"F32": 4, "BF16": 2}
ALIGNMENT = 64

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> (dtype, shape), in the order in which the arrays will come."""


def write_safetensors(
    path: Path,
    layout: Layout,
    arrays: Iterable[np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
    label: str = "",
) -> None:
    """Write float32 `arrays` (in the order of `layout`) as F32 or BF16; the file appears only when it is complete.

    `progress` is told of it as `label`, or else as "writing" and the file's name.
    Raises MiniferError when the disk refuses, FormatError when an array does not have the shape announced for it.
    """
    header, data_bytes = header_bytes(layout, metadata)
    with atomic_file(path, len(header) + data_bytes) as file:
        file.write(header)
        done = 0
        for (name, (dtype, shape)), array in zip(layout.items(), arrays, strict=True):
            if array.shape != shape:
                raise FormatError(f"tensor {name!r} has the shape {array.shape}, and {shape} was announced")
            done += file.write(encode(array, dtype))
            progress(label or f"writing {path.name}", done, data_bytes)


def header_bytes(layout: Layout, metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The length field with the padded header, and how many bytes of data will follow it."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in layout.items():
        begin, end = end, end + math.prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, end


def encode(array: np.ndarray, dtype: str) -> memoryview:
    """The bytes of a float32 array as F32 or BF16, little-endian."""
    little = np.ascontiguousarray(array, "<f4")
    return (little if dtype == "F32" else float32_to_bfloat16(little)).reshape(-1).view(np.uint8).data


def float32_to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16 (ties to even), as uint16 bits. NaN stays NaN.

    >>> [hex(bits) for bits in float32_to_bfloat16(np.array([1.0, -3.140625, 1.00390625, np.nan], np.float32))]
    ['0x3f80', '0xc049', '0x3f80', '0x7fc0']
    """
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding could carry a NaN over into infinity or -0
    return np.where(np.isnan(array), quiet_nan, rounded).astype("<u2")

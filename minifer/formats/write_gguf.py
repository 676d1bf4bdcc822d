"""Writing a GGUF file with llama.cpp's own library, one tensor at a time.

The library decides on the bytes, so that what it writes is what llama.cpp reads; here are only the order of the steps
and the rule that llama.cpp wants vectors (norms, biases) in F32 even when the matrices are BF16.

Not here: names, row order and metadata of a model. See `minifer/apps/export.py`.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minifer.errors import FormatError
from minifer.formats.atomic import Progress, atomic_path, no_progress
from minifer.formats.write_safetensors import WIDTH, Layout, float32_to_bfloat16


def stored_dtype(shape: tuple[int, ...], dtype: str) -> str:
    """`dtype` for matrices, F32 for vectors.

    >>> stored_dtype((576, 576), "BF16"), stored_dtype((576,), "BF16")
    ('BF16', 'F32')
    """
    return dtype if len(shape) > 1 else "F32"


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    layout: Layout,
    arrays: Iterable[np.ndarray],
    *,
    progress: Progress = no_progress,
) -> None:
    """Write float32 `arrays` (in the order of `layout`) as F32 or BF16; the file appears only when it is complete.

    Metadata values get their GGUF types by their Python types: bool, int (u32), float (f32), str, and lists of these.
    Raises MiniferError when the disk refuses, FormatError when an array does not have the shape announced for it.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    total = sum(math.prod(shape) * WIDTH[dtype] for dtype, shape in layout.values())
    with atomic_path(path, total) as temporary:
        writer = GGUFWriter(temporary, architecture)
        try:
            for key, value in metadata.items():
                _add(writer, key, value)
            for name, (dtype, shape) in layout.items():
                nbytes = math.prod(shape) * WIDTH[dtype]
                writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, GGMLQuantizationType[dtype])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done = 0
            for (name, (dtype, shape)), array in zip(layout.items(), arrays, strict=True):
                if array.shape != shape:
                    raise FormatError(f"tensor {name!r} has the shape {array.shape}, and {shape} was announced")
                stored = np.ascontiguousarray(array, "<f4")
                stored = float32_to_bfloat16(stored) if dtype == "BF16" else stored
                writer.write_tensor_data(stored)
                done += stored.nbytes
                progress(f"writing {path.name}", done, total)
        finally:
            writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """One metadata entry. Order matters: in Python a bool is an int, too."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))

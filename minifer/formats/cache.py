"""The float32 form of a quantised GGUF file, kept on disk for the second start.

Dequantising SmolLM2 takes 1.4 s, a large model minutes, and the result is always the same. So it is written once, as
an ordinary safetensors file with Hugging Face names and row order, and mapped from then on: the second start costs a
few milliseconds, and two processes share one copy in memory. It is four to eight times as large as the GGUF file;
`minifer models remove` deletes it with the model.

The key is the SHA-256 of the GGUF file, so a changed file can never meet an old copy, and a moved one keeps its own.

Not cached: files whose tensors are all F32, F16 or BF16. To convert those is as quick as to read them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minifer.errors import FormatError, MiniferError
from minifer.formats.atomic import Progress, no_progress
from minifer.formats.digest import file_sha256
from minifer.formats.gguf import GGUFFile
from minifer.formats.hf_names import PERMUTED_ARCHITECTURES, rope_heads, to_hf, unpermute
from minifer.formats.safetensors import SafetensorsFile, read_safetensors
from minifer.formats.write_safetensors import write_safetensors

RECIPE = "v1"  # change it whenever the same GGUF file would give other numbers, names or shapes


def cached_float32(gguf: GGUFFile, cache_dir: Path, progress: Progress = no_progress) -> dict[str, np.ndarray]:
    """All tensors as read-only float32 views of the cached file, which is made first where it is missing or damaged.

    Raises MiniferError when it cannot be written (no space), and what `float32_tensors` raises.
    """
    shapes = hf_shapes(gguf)
    path = cache_path(gguf.path, cache_dir)
    file = _usable(path, shapes)
    if file is None:
        layout = {name: ("F32", shape) for name, shape in shapes.items()}
        arrays = (array for _, array in float32_tensors(gguf))
        write_safetensors(path, layout, arrays, progress=progress, label=f"dequantising {gguf.path.name}")
        file = read_safetensors(path)
    return {name: file.load(name) for name in file.names()}


def cache_path(gguf_path: Path, cache_dir: Path) -> Path:
    """Where the float32 form of this file belongs, whether it is there or not."""
    return cache_dir / f"{file_sha256(gguf_path, cache_dir / 'digests')}-{RECIPE}.safetensors"


def worth_caching(gguf: GGUFFile) -> bool:
    """Whether any tensor is really quantised."""
    return any(info.type_name not in ("F32", "F16", "BF16") for info in gguf.tensors.values())


def hf_shapes(gguf: GGUFFile) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape, in the order of the file's list.

    Raises UnsupportedError for a tensor that minifer does not know.
    """
    return {to_hf(name): info.shape for name, info in gguf.tensors.items()}


def float32_tensors(gguf: GGUFFile) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, float32 array in Hugging Face row order), one after the other, in the order of `hf_shapes`.

    Raises UnsupportedError for a tensor type that cannot be dequantised, FormatError for impossible head counts.
    """
    heads, kv_heads = head_counts(gguf)
    for name in gguf.tensors:
        hf_name, array = to_hf(name), gguf.load(name)
        count = rope_heads(hf_name, heads, kv_heads)
        yield hf_name, unpermute(array, count) if count else array


def head_counts(gguf: GGUFFile) -> tuple[int, int]:
    """Heads and kv heads whose rows are permuted in this file; (0, 0) for an architecture that leaves them alone."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in PERMUTED_ARCHITECTURES:
        return 0, 0
    heads = gguf.metadata.get(f"{architecture}.attention.head_count")
    kv_heads = gguf.metadata.get(f"{architecture}.attention.head_count_kv", heads)
    if type(heads) is not int or type(kv_heads) is not int or min(heads, kv_heads) < 1:
        raise FormatError(f"{gguf.path}: head_count={heads!r} and head_count_kv={kv_heads!r} must be positive numbers")
    return heads, kv_heads


def _usable(path: Path, shapes: dict[str, tuple[int, ...]]) -> SafetensorsFile | None:
    """The cached file, if it is there, whole, and holds exactly these tensors."""
    try:
        file = read_safetensors(path)
    except MiniferError:
        return None
    return file if {name: file.shape(name) for name in file.names()} == shapes else None

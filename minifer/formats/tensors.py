"""One door to all weight files: a path goes in, float32 arrays under Hugging Face names come out.

    checkpoint = open_checkpoint("models/SmolLM2-135M")     # a folder, or a .gguf file; only headers are read
    checkpoint.config                                       # config.json, or the GGUF metadata
    weights = checkpoint.tensors(cache_dir)                 # {"model.norm.weight": array [576] float32, ...}

Not here: which tensors a model needs and of what shape. `model/weights.py` knows that, and compares.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minifer.errors import FormatError, MiniferError, ModelNotFoundError, UnsupportedError
from minifer.formats.atomic import Progress, no_progress
from minifer.formats.cache import cached_float32, float32_tensors, hf_shapes, worth_caching
from minifer.formats.gguf import GGUFFile, read_gguf
from minifer.formats.safetensors import SafetensorsFolder, open_folder, read_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Checked headers of a model's files.

    `config` is config.json, or for a GGUF file its metadata; `generation` is generation_config.json, or empty.
    """

    path: Path
    source: GGUFFile | SafetensorsFolder
    config: dict[str, Any] = field(repr=False)
    generation: dict[str, Any] = field(default_factory=dict, repr=False)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape of each tensor; nothing is loaded."""
        if isinstance(self.source, GGUFFile):
            return hf_shapes(self.source)
        return {name: self.source.shape(name) for name in self.source.names() if not _is_buffer(name)}

    def tensors(self, cache_dir: Path | None = None, progress: Progress = no_progress) -> dict[str, np.ndarray]:
        """All tensors, float32, in Hugging Face names and row order; plain float32 files give read-only views.

        A quantised GGUF file goes through the cache in `cache_dir`. Where that cannot be written (a full disk, a
        read-only stick) a warning is logged and the arrays are made in memory, as they are without `cache_dir`.
        """
        if not isinstance(self.source, GGUFFile):
            return {name: self.source.load(name) for name in self.shapes()}
        if cache_dir and worth_caching(self.source):
            try:
                return cached_float32(self.source, cache_dir, progress)
            except (FormatError, UnsupportedError):
                raise
            except MiniferError as error:
                log.warning("%s; going on in memory, so the next start will take as long again", error)
        return dict(float32_tensors(self.source))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder and check every header in it.

    Raises ModelNotFoundError when nothing is there or the folder is not a model, FormatError for damaged files,
    UnsupportedError for what minifer cannot read.
    """
    path = Path(path)
    if not path.is_dir():
        gguf = read_gguf(path)
        if gguf.metadata.get("split.count", 1) != 1:
            raise UnsupportedError(f"{path}: one of several parts; join them first with llama.cpp's llama-gguf-split")
        return Checkpoint(path, gguf, gguf.metadata)
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path}: not a model folder: it has no config.json{_hint(path)}")
    generation = path / "generation_config.json"
    return Checkpoint(
        path,
        open_folder(path),
        read_json(path / "config.json"),
        read_json(generation) if generation.is_file() else {},
    )


def _hint(folder: Path) -> str:
    """A GGUF file in the folder is what the user most likely meant."""
    files = sorted(folder.glob("*.gguf"))
    return f"; give the path of the file itself: {files[0]}" if files else ""


def _is_buffer(name: str) -> bool:
    """Old Llama 2 checkpoints saved RoPE's frequencies, which follow from the configuration."""
    return name.endswith(".rotary_emb.inv_freq")

"""A model by name or path: its files found, its configuration read, its weights in a tree.

name or path -> hub.locate -> files -> formats.open_checkpoint -> flat tensors -> weights.build_weights -> tree
"""

from dataclasses import dataclass
from pathlib import Path

from minifer.errors import FormatError
from minifer.formats.atomic import Progress, no_progress
from minifer.formats.gguf import GGUFFile
from minifer.formats.tensors import Checkpoint, open_checkpoint
from minifer.hub import cache_home, locate
from minifer.model.config import ModelConfig
from minifer.model.weights import Weights, build_weights, check_tensors, random_tensors


@dataclass(frozen=True)
class Model:
    """A loaded model. `tokenizer_path` is the folder or GGUF file that holds its vocabulary; None for a random one."""

    name: str
    config: ModelConfig
    weights: Weights
    tokenizer_path: Path | None


def load_model(model: str | Path, *, download: bool = True, seed: int = 0, progress: Progress = no_progress) -> Model:
    """Load `model`: a known name, a Hugging Face folder, a .gguf file, or `random:<name>` (weights from `seed`).

    `progress(what, done, total)` is told how far a download or a dequantisation has come.
    Raises ModelNotFoundError, DownloadError, FormatError or UnsupportedError, before anything is computed.
    """
    files = locate(str(model), download=download, progress=progress)
    if files.kind == "random":
        config = ModelConfig.from_hf(files.config)
        return Model(files.name, config, build_weights(config, random_tensors(config, seed)), None)
    checkpoint = open_checkpoint(files.path)
    config = config_of(checkpoint)
    check_tensors(config, checkpoint.shapes())
    weights = build_weights(config, checkpoint.tensors(cache_home() / "float32", progress))
    return Model(files.name, config, weights, files.path)


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration in a checkpoint's headers, whichever kind it is."""
    source = checkpoint.source
    if not isinstance(source, GGUFFile):
        return ModelConfig.from_hf(checkpoint.config, checkpoint.generation)
    embedding = source.tensors.get("token_embd.weight")
    if embedding is None:
        raise FormatError(f"{checkpoint.path}: the file has no tensor token_embd.weight, so it is not a language model")
    factors = source.load("rope_freqs.weight").tolist() if "rope_freqs.weight" in source.tensors else None
    return ModelConfig.from_gguf(checkpoint.config, list(source.tensors), embedding.shape[0], factors)

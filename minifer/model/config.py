"""What distinguishes one Llama-like model from another, as data.

There is one forward pass (`transformer.py`). Llama 2 and 3, SmolLM2, Mistral, Qwen2.5 and Qwen3 differ in what stands
here: sizes, a bias, a norm on queries and keys, a window, the way RoPE is stretched. Field names are those of Hugging
Face's config.json, so that a model card can be read beside this file; how they are found in the two kinds of file is
the business of `formats/model_keys.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minifer.errors import FormatError
from minifer.formats.model_keys import gguf_fields, hf_fields, positive_int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. Sizes are counts; `rope_theta` is RoPE's base, `rms_norm_eps` the norm's epsilon.

    `rope_scaling` is None or a mapping with `rope_type`: `llama3` (Llama 3.1's stretching by wavelength), `linear`, or
    `factors` (a divisor for each frequency, as GGUF files carry it). `sliding_window` W lets a token see itself and the
    W - 1 before it. `attention_bias` puts a bias on q, k and v, `output_bias` on the output projection, `qk_norm` an
    RMS norm on each head of q and k before RoPE.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    model_type: str = "llama"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other, naming both."""
        for name in _SIZES:
            positive_int(name, getattr(self, name))
        if self.num_attention_heads % self.num_key_value_heads:
            raise FormatError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise FormatError(f"head_dim={self.head_dim} is odd, but RoPE rotates pairs")
        if not self.rms_norm_eps >= 0 or not self.rope_theta > 0:
            raise FormatError(f"rms_norm_eps={self.rms_norm_eps} and rope_theta={self.rope_theta} must be positive")
        if self.sliding_window is not None:
            positive_int("sliding_window", self.sliding_window)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token in float32: keys and values of every layer, by *kv* heads."""
        return 4 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def window(self) -> int:
        """How many tokens a token may see, itself included."""
        return self.sliding_window or self.max_position_embeddings

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelConfig":
        """From a parsed config.json, and generation_config.json where there is one; errors as for `hf_fields`."""
        return cls(**hf_fields(config, generation))

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        tensor_names: Sequence[str],
        vocab_size: int,
        rope_factors: Sequence[float] | None = None,
    ) -> "ModelConfig":
        """From a GGUF file's metadata; arguments and errors as for `gguf_fields`."""
        return cls(**gguf_fields(metadata, tensor_names, vocab_size, rope_factors))


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)

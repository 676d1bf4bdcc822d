"""Small weight files made byte by byte, so that tests can break them at will."""

import json
import struct
from collections.abc import Sequence

import numpy as np

KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}
CODES = dict(zip(KINDS, "BbHhIif?Qqd", strict=True))


def string(text: str | bytes) -> bytes:
    """A GGUF string: length, then UTF-8."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: str, value: object) -> bytes:
    """A typed metadata value."""
    return struct.pack(f"<I{CODES[kind]}", KINDS[kind], value)


def text(value: str | bytes) -> bytes:
    """A typed string value."""
    return struct.pack("<I", 8) + string(value)


def array(kind: str, values: Sequence[object]) -> bytes:
    """A typed array of scalars or of strings."""
    if kind == "string":
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(string(value) for value in values)  # type: ignore[arg-type]
    return struct.pack(f"<IIQ{len(values)}{CODES[kind]}", 9, KINDS[kind], len(values), *values)


def tensor_info(name: str, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    """One entry of the tensor list."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def header(entries: int, tensors: int, version: int = 3) -> bytes:
    """Magic, version and the two counts."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def gguf(metadata: dict[str, bytes], tensors: dict[str, np.ndarray], alignment: int = 32) -> bytes:
    """A whole file of float32 tensors. It ends with the last tensor's last byte, so that every cut loses something."""
    out = header(len(metadata), len(tensors)) + b"".join(string(key) + value for key, value in metadata.items())
    offset, data = 0, b""
    for name, values in tensors.items():
        data += bytes(offset - len(data)) + values.astype("<f4").tobytes()
        out += tensor_info(name, values.shape[::-1], 0, offset)
        offset = -(-len(data) // alignment) * alignment
    return out + bytes(-len(out) % alignment) + data if tensors else out


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (bytes are taken as they are, anything else becomes JSON)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: Sequence[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    """One tensor in a safetensors header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def llama_tensors(
    layers: int = 2,
    hidden: int = 32,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 8,
    vocab: int = 40,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Random float32 tensors of a small tied Llama under Hugging Face names; head_dim is not hidden / heads."""
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}self_attn.q_proj.weight": (heads * head_dim, hidden),
            f"{at}self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
            f"{at}self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, heads * head_dim),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}mlp.gate_proj.weight": (64, hidden),
            f"{at}mlp.up_proj.weight": (64, hidden),
            f"{at}mlp.down_proj.weight": (hidden, 64),
        }
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

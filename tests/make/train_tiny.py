"""Train the bundled `tiny` model: 4 layers, hidden 96, 6 query and 2 key/value heads of 24, on one CPU thread.

    python tests/make/train_tiny.py            # reads minifer/data/tiny/tokenizer.json, writes the rest of that folder

Before it, `tiny_vocab.py` makes tokenizer.json; the text comes from `tiny_world.py`. Made with torch 2.13.0 (CPU),
transformers 5.24.0, tokenizers 0.23.3, safetensors 0.8.0, one thread, seed 20240229. Same versions and same machine
give the same weights; elsewhere the sums are added in another order, and the weights come out slightly different. The
file in the package is the one that counts.

Two choices are worth knowing. Hidden matrices are trained with Muon and the rest with AdamW, since that gets further in
the same time. Every fourth batch has rows of 1,024 tokens, because a model that has seen only short rows goes wrong
behind them, whatever its config promises.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from common import TINY, versions, write_json
from safetensors.torch import save_file
from tiny_world import END_OF_TEXT, documents
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 20240229
DOCUMENTS = 100_000
CONTEXT = 1024


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The shape of tiny. The heads are 24 wide although 96 / 6 is 16, so that nobody can derive one from the other."""
    end, stop = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id("<|im_end|>")
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=end,
        eos_token_id=stop,
        attn_implementation="sdpa",
    )


def token_stream(tokenizer: Tokenizer) -> tuple[torch.Tensor, np.ndarray]:
    """All documents as one row of ids, each closed by <|endoftext|>, and the index where each one starts."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch(list(documents(SEED, DOCUMENTS)), add_special_tokens=False)
    rows = [np.array([*entry.ids, end]) for entry in encoded]
    starts = np.cumsum([0] + [row.size for row in rows[:-1]])
    return torch.from_numpy(np.concatenate(rows)), starts


def batches(stream: torch.Tensor, starts: np.ndarray, steps: int) -> Iterator[torch.Tensor]:
    """`steps` batches of 4,096 tokens: three of 16 x 256, then one of 4 x 1,024.

    Half of the rows begin where a document begins, since a prompt does too.
    """
    rng = np.random.default_rng(SEED)
    for step in range(steps):
        length = CONTEXT if step % 4 == 3 else 256
        rows = 4096 // length
        anywhere = rng.integers(0, len(stream) - length, rows)
        first = starts[starts < len(stream) - length]
        offsets = np.where(np.arange(rows) % 2, anywhere, rng.choice(first, rows))
        yield torch.stack([stream[at : at + length] for at in offsets])


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    return [
        torch.optim.Muon(inner, lr=0.02, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(outer, lr=0.006, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def learning_rate(step: int, steps: int) -> float:
    """Share of the full rate: up over 40 steps, flat, and down to zero over the last 60 %, where the weights settle."""
    return min(1.0, (step + 1) / 40, (steps - step) / (0.6 * steps))


def train(model: LlamaForCausalLM, stream: torch.Tensor, starts: np.ndarray, steps: int) -> None:
    """Minimise the mean negative log-likelihood of the next token; prints a line every 50 steps."""
    optims = optimizers(model)
    full = [group["lr"] for optim in optims for group in optim.param_groups]
    begin, average = time.monotonic(), math.nan
    for step, ids in enumerate(batches(stream, starts, steps)):
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim, rate in zip(optims, full, strict=True):
            optim.param_groups[0]["lr"] = rate * learning_rate(step, steps)
            optim.step()
            optim.zero_grad()
        average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
        if step % 50 == 49 or step == 0:
            print(f"step {step + 1:5d}  loss {average:.4f}  {time.monotonic() - begin:6.0f} s", flush=True)


def save(model: LlamaForCausalLM, folder: Path, tokenizer: Tokenizer) -> None:
    """Write the weights (bfloat16), and the two configs in the form that transformers 4 and 5 both read."""
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied: the same array as the embedding
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    keys = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"
    keys += " max_position_embeddings rms_norm_eps tie_word_embeddings bos_token_id eos_token_id"
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    config |= {key: getattr(model.config, key) for key in keys.split()}
    config |= {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16"}
    config |= {"rope_theta": 10000.0, "rope_scaling": None}
    write_json(folder / "config.json", config)
    stop = [tokenizer.token_to_id(token) for token in ("<|im_end|>", END_OF_TEXT)]  # both ends stop a generation
    write_json(
        folder / "generation_config.json", {"bos_token_id": stop[1], "eos_token_id": stop, "pad_token_id": stop[1]}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TINY, help="folder with tokenizer.json; the model is written there")
    parser.add_argument("--steps", type=int, default=2600)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    stream, starts = token_stream(tokenizer)
    model = LlamaForCausalLM(model_config(tokenizer))
    print(json.dumps(versions("torch", "transformers", "tokenizers", "numpy", "safetensors")))
    print(f"{model.num_parameters():,} weights, {len(stream):,} tokens in {len(starts):,} documents", flush=True)
    train(model, stream, starts, args.steps)
    save(model, args.out, tokenizer)


if __name__ == "__main__":
    main()

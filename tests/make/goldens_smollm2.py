"""Golden values for SmolLM2-135M-Instruct (the Q4_1 GGUF), computed by transformers in float32.

    python tests/make/goldens_smollm2.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--check OTHER.json]

writes `tests/golden/smollm2.json`. Made with torch 2.13.0 (CPU), transformers 5.24.0, tokenizers 0.23.3, gguf 0.19.0;
about one minute on one core. transformers itself dequantises the file and un-permutes Q and K; the tokenizer is put
together from the file's vocabulary and merges with the `tokenizers` library. No line of minifer takes part.

Text is a bad oracle: a wrong RoPE base or a wrong epsilon still answers " Paris". So the file holds logits (tolerance
2e-3) and the negative log-likelihood of a text of our own, next to the 32 greedy tokens of each prompt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import GOLDEN, greedy, logits_of, nll_record, rounded, row_record, versions, write_json
from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 4,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "🦙 is a llama.",
]

CHATS = ["What is the capital of France?", "Write one sentence about the sea."]

TEXT = """\
The old lighthouse at Harrow Point was built in 1874, and for the first 52 years it burned nothing but whale oil. Each \
night the keeper climbed 211 steps, trimmed the wick, and wrote three numbers in his log: the hour, the wind, and the \
height of the water. "If you want to know the sea," he used to say, "don't look at it - count it!"

In 1926 the lamp became electric. It took 1,500 watts, cost about $0.04 an hour, and could be seen from 19.5 miles \
away; nobody had to climb the stairs any more. Still, the last keeper's daughter went up every evening at 7:30, \
because the view was good and the habit was older than she was.

Today a small computer watches the light. It measures the temperature (between -12 and 31 degrees), sends one message \
every ten minutes, and has failed only twice. But on clear nights, when the beam sweeps over the bay, people in the \
village still say that someone is up there, counting.
"""


def load_tokenizer(gguf_path: Path) -> tuple[Tokenizer, str]:
    """The tokenizer of the GGUF as the `tokenizers` library runs it, and the chat template.

    Pre-tokenizer `smollm`: digits one by one, then GPT-2's ByteLevel. Token type 3 marks control tokens.
    """
    fields = GGUFReader(gguf_path).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer, fields["tokenizer.chat_template"].contents()


def prompt_record(model: Any, tokenizer: Tokenizer, prompt: str, rng: np.random.Generator) -> dict[str, Any]:
    """Ids, 32 greedy tokens with margins, and logits of the last, the first and the middle position of a prompt."""
    ids = tokenizer.encode(prompt).ids
    logits = logits_of(model, ids)
    output, margins = greedy(model, ids, 32)
    positions = sorted({0, len(ids) // 2, len(ids) - 1}, reverse=True)
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "greedy32": output,
        "text": tokenizer.decode(output, skip_special_tokens=False),
        "margins": rounded(margins, 4),
        "min_margin": round(min(margins), 4),
        "min_margin_at": int(np.argmin(margins)),
        "logits": [row_record(logits[p], p, rng) for p in positions],
    }


def chat_record(model: Any, tokenizer: Tokenizer, template: str, question: str) -> dict[str, Any]:
    """The chat form of a question: rendered text, ids (one BOS only) and 24 greedy tokens."""
    messages = [{"role": "user", "content": question}]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    ids = tokenizer.encode(text).ids
    output, margins = greedy(model, ids, 24)
    return {
        "messages": messages,
        "rendered": text,
        "prompt_ids": ids,
        "greedy24": output,
        "text": tokenizer.decode(output, skip_special_tokens=False),
        "min_margin": round(min(margins), 4),
    }


def text_record(model: Any, tokenizer: Tokenizer, rng: np.random.Generator) -> dict[str, Any]:
    """Ids and negative log-likelihood of TEXT, and logits of four of its positions."""
    ids = tokenizer.encode(TEXT).ids
    logits = logits_of(model, ids)
    rows = [row_record(logits[p], p, rng) for p in (1, 64, 128, len(ids) - 1)]
    return {"text": TEXT, "ids": ids, **nll_record(logits, ids), "logits": rows}


def check(path: Path, records: list[dict[str, Any]]) -> None:
    """Compare ids and text with an earlier golden file made elsewhere; raise on the first difference."""
    for old, new in zip(json.loads(path.read_text(encoding="utf-8")), records, strict=True):
        for key in ("prompt", "prompt_ids", "greedy32", "text"):
            assert old[key] == new[key], (old["prompt"], key, old[key], new[key])
    print(f"{len(records)} continuations equal to {path.name}, token for token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--check", type=Path, help="an earlier file: a list of prompt, prompt_ids, greedy32, text")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        args.gguf.parent, gguf_file=args.gguf.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer, template = load_tokenizer(args.gguf)
    rng = np.random.default_rng(2024)
    prompts = [prompt_record(model, tokenizer, prompt, rng) for prompt in PROMPTS]
    if args.check:
        check(args.check, prompts)
    golden = {
        "made_by": "tests/make/goldens_smollm2.py",
        "versions": versions("torch", "transformers", "tokenizers", "gguf", "numpy"),
        "gguf": {"name": args.gguf.name, "sha256": hashlib.sha256(args.gguf.read_bytes()).hexdigest()},
        "config": {"rms_norm_eps": model.config.rms_norm_eps, "rope": model.config.rope_parameters},
        "prompts": prompts,
        "chats": [chat_record(model, tokenizer, template, question) for question in CHATS],
        "nll": text_record(model, tokenizer, rng),
    }
    write_json(GOLDEN / "smollm2.json", golden)
    for record in prompts + golden["chats"]:
        print(repr(record["text"]), record["min_margin"])
    print("tokens", len(golden["nll"]["ids"]), "mean NLL", golden["nll"]["mean_nll"], "config", golden["config"])


if __name__ == "__main__":
    main()

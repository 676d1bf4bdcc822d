"""Golden values for the bundled `tiny` model, computed by transformers in float32.

    python tests/make/goldens_tiny.py            # reads minifer/data/tiny, writes tests/golden/tiny.json

Made with torch 2.13.0 (CPU), transformers 5.24.0, tokenizers 0.23.3; a few seconds. To be run again whenever tiny is
trained again. Continuations are not stopped at the end tokens, so that all of them have the same length; where a real
run would stop, `stops_at` says so (the index of the first <|im_end|> or <|endoftext|>, or null).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from common import GOLDEN, TINY, greedy, logits_of, nll_record, rounded, row_record, versions, write_json
from tiny_world import documents, week
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 4,",
    "Water boils at",
    "Hello",
    "One morning, Lily went to the market.",
    "Question: Who has a horse?\nAnswer:",
    "def fibonacci(n):\n    ",
]
CHATS = [
    ["What is the capital of France?"],
    ["Who are you?"],
    ["What is 3 + 4?"],
    ["Tell me a story about Otto."],
    ["Tom put the ring in the basket. Mia put the map in the boat. Where is the map?"],
    ["Show me a llama."],
    ["Explain black holes to me."],
    ["What is the capital of Italy?", "The capital of Italy is Rome.", "And of Norway?"],
]
OUTSIDE = "The committee will publish its 14 recommendations on Thursday; nobody expects a surprise.\n"


def long_text() -> str:
    """The longest of a hundred weeks: about 600 tokens, none of which tiny was trained on in this order."""
    return max((week(random.Random(seed)) for seed in range(5000, 5100)), key=len)


def record(model: Any, tokenizer: Tokenizer, ids: list[int], rng: np.random.Generator) -> dict[str, Any]:
    """Greedy tokens with margins, and the logits of the prompt's last position."""
    output, margins = greedy(model, ids, LENGTH)
    stops = [index for index, token in enumerate(output) if token in model.generation_config.eos_token_id]
    return {
        "prompt_ids": ids,
        "greedy": output,
        "text": tokenizer.decode(output, skip_special_tokens=False),
        "stops_at": stops[0] if stops else None,
        "margins": rounded(margins, 4),
        "min_margin": round(min(margins), 4),
        "logits": [row_record(logits_of(model, ids)[-1], len(ids) - 1, rng)],
    }


def text_record(model: Any, tokenizer: Tokenizer, text: str, rng: np.random.Generator) -> dict[str, Any]:
    """Ids, negative log-likelihood and three rows of logits of a text."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    logits = logits_of(model, ids)
    rows = [row_record(logits[p], p, rng) for p in (0, len(ids) // 2, len(ids) - 1)]
    return {"text": text, "ids": ids, **nll_record(logits, ids), "logits": rows}


def chat_ids(template: Any, contents: list[str]) -> list[int]:
    """The ids of a conversation, user first, as transformers renders and encodes it."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return template.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def main() -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer, template = Tokenizer.from_file(str(TINY / "tokenizer.json")), AutoTokenizer.from_pretrained(TINY)
    rng = np.random.default_rng(96)
    raw = [{"prompt": p, **record(model, tokenizer, tokenizer.encode(p).ids, rng)} for p in PROMPTS]
    chats = [{"contents": c, **record(model, tokenizer, chat_ids(template, c), rng)} for c in CHATS]
    texts = [long_text(), " ".join(documents(5000, 3)), OUTSIDE]
    golden = {
        "made_by": "tests/make/goldens_tiny.py",
        "versions": versions("torch", "transformers", "tokenizers", "numpy"),
        "prompts": raw,
        "chats": chats,
        "texts": [text_record(model, tokenizer, text, rng) for text in texts],
    }
    write_json(GOLDEN / "tiny.json", golden)
    for entry in raw + chats:
        print(repr(entry.get("prompt") or entry["contents"][-1]), "->", repr(entry["text"]), entry["min_margin"])
    print("mean NLL", [(len(text["ids"]), text["mean_nll"]) for text in golden["texts"]])


if __name__ == "__main__":
    main()

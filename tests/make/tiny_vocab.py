"""Make the vocabulary of the bundled `tiny` model with our own trainer, `minifer.tokenizer.bpe.train`.

    python tests/make/tiny_vocab.py            # writes tokenizer.json and tokenizer_config.json into minifer/data/tiny

Needs minifer and the `regex` package only. The result is frozen: tiny's weights know these 1,200 tokens and no others,
so a later change of the trainer must not change the file. Ids are laid out as in SmolLM2: control tokens first, then
the 256 bytes in GPT-2's alphabet, then the merges in the order they were found. Text is cut as SmolLM2 does (`smollm`).

The trainer sees the ASCII documents only, so that a llama, a thumb and Chinese stay several tokens each: a stream that
cuts a character in two is then a thing that tests can see.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tiny_world import END_OF_TEXT, IM_END, IM_START, documents

from minifer.tokenizer.bpe import Merges, train, vocabulary
from minifer.tokenizer.pretokenize import SMOLLM

SEED, DOCUMENTS, SIZE = 11, 30_000, 1200
SPECIAL = [END_OF_TEXT, IM_START, IM_END]
TINY = Path(__file__).resolve().parents[2] / "minifer" / "data" / "tiny"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def byte_letters() -> list[str]:
    """GPT-2's alphabet: byte -> a printable character (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


def tokenizer_json(merges: Merges) -> dict[str, Any]:
    """The tokenizer.json of these merges, whose ids 0 to 255 are bytes and 256 on are merges."""
    letters = byte_letters()
    spell = ["".join(letters[byte] for byte in token) for token in vocabulary(merges)]
    tokens = SPECIAL + sorted(letters) + spell[256:]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [[spell[left], spell[right]] for left, right in merges],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json: which token is which, and the chat template (ChatML without a system turn of its own)."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": END_OF_TEXT,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TINY)
    args = parser.parse_args()
    texts = [text for text in documents(SEED, DOCUMENTS) if text.isascii()]
    merges = train(texts, SIZE - len(SPECIAL), pattern=SMOLLM)
    result = tokenizer_json(merges)
    assert len(result["model"]["vocab"]) == SIZE, "two merges spell the same token"
    args.out.mkdir(parents=True, exist_ok=True)
    for name, value in (("tokenizer.json", result), ("tokenizer_config.json", tokenizer_config())):
        (args.out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{len(merges)} merges from {sum(map(len, texts)):,} characters; the last are", list(merges)[-3:])


if __name__ == "__main__":
    main()

"""How often tiny is right: exact answers to questions of each kind, greedily decoded by transformers.

    python tests/make/score_tiny.py            # prints one line per kind, about two minutes

The questions come from the grammar with another seed; most of them stand in the training text as well.
Versions as in `train_tiny.py`. The figures stand in minifer/data/tiny/README.md.
"""

from __future__ import annotations

import random

import torch
from common import TINY
from tiny_world import FACTS, number_qa, person_qa, puzzle_qa, table_qa, turn
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

QUESTIONS = 100
KINDS = {
    "villagers": person_qa,
    "capitals, opposites and the like": table_qa,
    "plain facts": lambda rng: rng.choice(FACTS),
    "numbers, days and months": number_qa,
    "where is the ball": puzzle_qa,
}


def main() -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for kind, ask in KINDS.items():
        rng, right = random.Random(777), 0
        for _ in range(QUESTIONS):
            question, answer = ask(rng)
            ids = tokenizer.encode(turn("user", question) + "<|im_start|>assistant\n").ids
            output = model.generate(torch.tensor([ids]), max_new_tokens=60, do_sample=False)[0, len(ids) :]
            right += tokenizer.decode(output.tolist()) == answer
        print(f"{kind}: {right} of {QUESTIONS}", flush=True)


if __name__ == "__main__":
    main()

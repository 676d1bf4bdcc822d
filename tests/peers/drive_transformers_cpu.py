"""Measures Hugging Face transformers on the CPU, in float32, with its own KV cache and scaled dot product attention.

    python driver.py FOLDER THREADS                    jobs as JSON on stdin, see `driving.py`
    python driver.py logits FOLDER IDS OUT.npy ...     logits [T, V] of a sequence of token ids; more triples may follow

Like llama-bench it computes logits for the last position of a prompt only, and samples nothing.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from driving import Job, drive
from transformers import AutoModelForCausalLM, DynamicCache


def open_model(folder: str) -> Any:
    """The model in float32, for inference."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def load(folder: str, threads: int) -> Callable[[Job], float]:
    """Load the model; jobs draw their tokens at random."""
    torch.set_num_threads(threads)
    model = open_model(folder)
    generator = torch.Generator().manual_seed(0)

    def tokens(batch: int, length: int) -> torch.Tensor:
        return torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)

    @torch.inference_mode()
    def run(job: Job) -> float:
        past = filled(job)
        lengths = [job.n_prompt] if job.n_prompt else [1] * job.steps
        inputs = [tokens(job.batch, length) for length in lengths]
        start = time.perf_counter()
        for ids in inputs:
            model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    kept: dict[tuple[int, int], DynamicCache] = {}

    @torch.inference_mode()
    def filled(job: Job) -> DynamicCache:
        """A cache at the job's depth: computed once, then copied."""
        if not job.n_depth:
            return DynamicCache()
        key = (job.batch, job.n_depth)
        if key not in kept:
            kept.clear()
            kept[key] = DynamicCache()
            model(tokens(job.batch, job.n_depth), past_key_values=kept[key], use_cache=True, logits_to_keep=1)
        return copy.deepcopy(kept[key])

    return run


@torch.inference_mode()
def write_logits(folder: str, ids: str, out: str) -> None:
    """Write the logits of all positions of `ids` (numbers with commas) to a .npy file."""
    logits = open_model(folder)(torch.tensor([[int(i) for i in ids.split(",")]]), use_cache=False).logits[0]
    np.save(out, logits.float().numpy())


if __name__ == "__main__":
    if sys.argv[1:2] == ["logits"]:
        for at in range(2, len(sys.argv), 3):
            write_logits(*sys.argv[at : at + 3])
    else:
        drive(load)

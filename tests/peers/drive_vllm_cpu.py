"""Measures vLLM's CPU build through its Python interface, step by step, in float32 and eager mode.

Prompts are random token ids. A prefill is a request for one token; a generation is measured from the step after all
sequences have their first token, so that the prefill is not in it. vLLM samples (greedily), the others do not: that is
a small part of a step. Prefix caching is off, or a prompt could not be measured twice.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

from driving import Job, drive

MOST_TOKENS = 16384
"""Tokens of one step: so many that the prompts of all sequences go through in the same one."""


def load(folder: str, threads: int) -> Callable[[Job], float]:
    """Start the engine in this process, on the first `threads` cores that it may use."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM

    llm = LLM(folder, dtype="float32", enforce_eager=True, skip_tokenizer_init=True, enable_prefix_caching=False,
              max_num_batched_tokens=MOST_TOKENS)  # fmt: skip
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    engine, source = llm.llm_engine, random.Random(0)

    def run(job: Job) -> float:
        if job.n_depth and job.n_prompt:
            raise ValueError("vLLM's prefill behind a depth is not measured")
        length = job.n_prompt or max(1, job.n_depth)
        prompts = [[source.randrange(vocabulary) for _ in range(length)] for _ in range(job.batch)]
        return prefill(engine, prompts) if job.n_prompt else generation(engine, prompts, job.steps)

    return run


def prefill(engine: Any, prompts: list[list[int]]) -> float:
    """Seconds until every prompt has its first token."""
    start = time.perf_counter()
    add(engine, prompts, 1)
    while engine.has_unfinished_requests():
        engine.step()
    return time.perf_counter() - start


def generation(engine: Any, prompts: list[list[int]], steps: int) -> float:
    """Seconds for `steps` tokens of every sequence, after the first."""
    add(engine, prompts, steps + 1)
    seen: dict[str, int] = {}
    start = 0.0
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id] = len(output.outputs[0].token_ids)
        if not start and len(seen) == len(prompts) and min(seen.values()) >= 1:
            assert max(seen.values()) == 1, "the sequences did not start together"
            start = time.perf_counter()
    return time.perf_counter() - start


def add(engine: Any, prompts: list[list[int]], tokens: int) -> None:
    """Hand the engine one request per prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for i, ids in enumerate(prompts):
        engine.add_request(f"{time.perf_counter_ns()}-{i}", {"prompt_token_ids": ids}, params)


if __name__ == "__main__":
    drive(load)

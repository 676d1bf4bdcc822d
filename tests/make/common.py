"""What the scripts of this folder share: greedy decoding by transformers, and small JSON files.

The scripts here make the golden files of `tests/golden/` and the bundled `tiny` model. They run once, by hand, in a
throwaway environment that has torch and transformers; nothing in minifer and no test imports them. So the reference
stays independent: whatever minifer computes, these numbers came from somebody else's code.

    python3 -m venv /tmp/oracle
    /tmp/oracle/bin/pip install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 numpy safetensors regex jinja2
    /tmp/oracle/bin/python tests/make/goldens_smollm2.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TINY = Path(__file__).resolve().parents[2] / "minifer" / "data" / "tiny"


def versions(*packages: str) -> dict[str, str]:
    """The versions that a golden file must name: Python's and those of the packages given."""
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def rounded(values: Sequence[float] | np.ndarray, digits: int = 5) -> list[float]:
    """Floats for JSON: `digits` decimals, far finer than the 2e-3 that tests allow."""
    return [round(float(v), digits) for v in values]


def write_json(path: Path, value: Any) -> None:
    """Write JSON with one number list per line: small, and a diff still shows which list changed."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda m: re.sub(r"\s+", " ", m[0]).replace("[ ", "[").replace(" ]", "]"), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


@torch.no_grad()
def logits_of(model: Any, ids: Sequence[int]) -> np.ndarray:
    """Logits of one sequence in one pass, float32 `[T, V]`."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities over the last axis, in float64 so that they add no error of their own."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def greedy(model: Any, prompt_ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """`count` greedy tokens without a cache, and each one's margin: the best logit minus the second best.

    The whole sequence is run again for every token: slow, but no cache can be wrong. EOS does not stop it.
    """
    ids, margins = list(prompt_ids), []
    for _ in range(count):
        last = logits_of(model, ids)[-1]
        second, best = np.sort(last)[-2:]
        margins.append(float(best - second))
        ids.append(int(last.argmax()))
    return ids[len(prompt_ids) :], margins


def row_record(logits: np.ndarray, position: int, rng: np.random.Generator) -> dict[str, Any]:
    """One row of logits `[V]` for a golden file: the top 20 with logprobs, and 20 ids drawn at random."""
    top = np.argsort(-logits, kind="stable")[:20]
    drawn = np.sort(rng.choice(logits.size, 20, replace=False))
    return {
        "position": position,
        "top_ids": top.tolist(),
        "top_logits": rounded(logits[top]),
        "top_logprobs": rounded(log_softmax(logits)[top]),
        "random_ids": drawn.tolist(),
        "random_logits": rounded(logits[drawn]),
    }


def nll_record(logits: np.ndarray, ids: Sequence[int]) -> dict[str, Any]:
    """Negative log-likelihood in nats of tokens 1 .. T-1, each given those before it; logits are `[T, V]`."""
    targets = np.asarray(ids[1:])
    nll = -log_softmax(logits[:-1])[np.arange(targets.size), targets]
    return {"mean_nll": round(float(nll.mean()), 6), "token_nll": rounded(nll)}

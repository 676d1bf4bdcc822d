"""minifer: LLM inference that you can read, run, measure and rebuild.

    from minifer import LLM, SamplingParams
    llm = LLM("smollm2-135m")
    for out in llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8)):
        print(out.text, out.metrics.ttft)

Names are loaded when they are first used, so that `import minifer` costs nothing.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minifer.errors import MiniferError as MiniferError
    from minifer.llm import LLM as LLM
    from minifer.llm import RequestOutput as RequestOutput
    from minifer.sampling_params import SamplingParams as SamplingParams
    from minifer.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"

_HOME = {
    "LLM": "llm",
    "RequestOutput": "llm",
    "SamplingParams": "sampling_params",
    "Tokenizer": "tokenizer",
    "MiniferError": "errors",
}

__all__ = ["LLM", "MiniferError", "RequestOutput", "SamplingParams", "Tokenizer", "__version__"]

if os.environ.get("MINIFER_LAB") or os.path.isfile(".minifer-lab"):  # a lab: the student's files come first
    importlib.import_module(f"{__name__}.overlay").install()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

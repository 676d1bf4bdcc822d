"""Phase 02: text -> token ids -> text, from scratch.

    bpe.py          learning merges and using them
    pretokenize.py  text -> pieces, one way per family of models
    vocab.py        what a vocabulary means (its files are read by formats/vocab_files.py)
    tokenizer.py    all of it as one object
    stream.py       text from tokens that are still arriving
    chat.py         conversations, by the model's own template

Names are loaded when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minifer.tokenizer.stream import StreamDecoder as StreamDecoder
    from minifer.tokenizer.tokenizer import Tokenizer as Tokenizer

_HOMES = {"Tokenizer": "tokenizer", "StreamDecoder": "stream"}

__all__ = ["Tokenizer", "StreamDecoder"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""What attention remembers: `store` has the arrays, `pool` and `prefix` the bookkeeping."""

import importlib
from typing import Any

_HOME = {"KVStore": "store", "BlockPool": "pool"}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

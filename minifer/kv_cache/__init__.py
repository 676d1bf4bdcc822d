"""What attention remembers: the arrays (`store`) and the bookkeeping (`pool`, `prefix`)."""

import importlib
from typing import Any

_WHERE = {"KVStore": "store", "BlockPool": "pool", "PrefixCache": "prefix", "BlockKey": "prefix"}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Load a name's module when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

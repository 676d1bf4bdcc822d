"""How fast this machine could be, how fast a step was, and what stands between the two.

`probes.py` measures two ceilings and says which of them a given amount of work meets first. Points, plots and the
third ceiling (overhead) build on it.
"""

from typing import Any

_EXPORTS = {"Ceilings": "probes", "measure_ceilings": "probes"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)

"""How fast this machine could be, how fast a step was, and what stands between the two.

Read in this order: `probes.py` measures two ceilings at one working set, `ceilings.py` all of them and keeps them,
`cuda.py` those of a GPU, `predict.py` says what a step should take, `measure.py` what it takes, `profile.py` where the
time goes, and `speed.py` runs whole jobs as a benchmark does. The words and pictures are made in `apps/`.
"""

from typing import Any

_EXPORTS = {
    "Ceilings": "probes",
    "measure_ceilings": "probes",
    "Machine": "ceilings",
    "Roof": "predict",
    "predict_step": "predict",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)

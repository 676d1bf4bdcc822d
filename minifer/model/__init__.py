"""The model: its shape (`config`), its weights (`weights`, `load`), its forward pass (`transformer`), its price."""

import importlib
from typing import Any

_HOME = {
    "ModelConfig": "config",
    "Weights": "weights",
    "LayerWeights": "weights",
    "Model": "load",
    "load_model": "load",
    "forward": "transformer",
    "step_cost": "cost",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

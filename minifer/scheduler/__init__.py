"""Who runs in the next step: requests, plans, and two schedulers that can be stepped without a model."""

import importlib
from typing import Any

_MODULES = {
    "request": ("Request", "State"),
    "plan": ("ScheduledSeq", "StepPlan", "SeqResult", "StepResult", "TokenEvent", "Executor"),
    "continuous": ("ContinuousScheduler",),
    "static": ("StaticScheduler",),
    "fake": ("FakeExecutor",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Load a name's module when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

"""Who runs in the next step: requests, plans, and two schedulers that can be stepped without a model."""

import importlib
from typing import Any

_WHERE = {
    "Request": "request",
    "State": "request",
    "ScheduledSeq": "plan",
    "StepPlan": "plan",
    "SeqResult": "plan",
    "StepResult": "plan",
    "TokenEvent": "plan",
    "Executor": "plan",
    "EngineConfig": "config",
    "ContinuousScheduler": "continuous",
    "StaticScheduler": "static",
    "FakeExecutor": "fake",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Load a name's module when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

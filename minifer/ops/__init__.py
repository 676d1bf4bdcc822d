"""The arithmetic in three rooms behind one interface: `reference`, `cpu`, `cuda`.

`open_room` loads a fast room only when it is asked for, so that the core stands without them.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from minifer.errors import UsageError

if TYPE_CHECKING:
    from minifer.device import Device
    from minifer.meter import Meter
    from minifer.model.config import ModelConfig

ROOMS = ("reference", "cpu", "cuda")


def default_room(device: "Device") -> str:
    """The fastest room for a device that is part of this installation; in a lab the one that the student writes: the
    reference, or the kernels where the lab has some and the device runs them."""
    lab = os.environ.get("MINIFER_LAB", "off")
    if lab != "off" and (device.name == "cpu" or not os.path.isdir(f"{lab}/ops/kernels")):
        return "reference"
    wanted = "cpu" if device.name == "cpu" else "cuda"
    return wanted if importlib.util.find_spec(f"minifer.ops.{wanted}") else "reference"


def open_room(name: str, config: "ModelConfig", device: "Device", meter: "Meter | None" = None, **options: Any) -> Any:
    """The `Ops` object of the room called `name`. Raises UsageError for a name that is none of `ROOMS`, or a room
    that is not part of this installation."""
    if name not in ROOMS or importlib.util.find_spec(f"minifer.ops.{name}") is None:
        raise UsageError(f"there is no room {name!r} here: use one of {', '.join(ROOMS)}")
    return importlib.import_module(f"minifer.ops.{name}").Ops(config, device, meter, **options)

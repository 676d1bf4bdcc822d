"""Where arrays live: a name and the array module (`xp`) that goes with it.

`select_device` never falls back in silence. `auto` takes a CUDA GPU where CuPy finds one and says `cpu` otherwise;
`cuda` with no GPU is an error that says why. Nothing else in minifer decides where an array lives.
"""

import importlib
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from minifer.errors import DeviceError, UsageError

_PATTERN = re.compile(r"auto|cpu|strict|cuda(?::(\d+))?")


@dataclass(frozen=True)
class Device:
    """One place for arrays.

    `name` is `cpu`, `cuda:N` or `strict`; `xp` is `numpy`, `cupy` or what stands for it. The three methods are the only
    transfers of the core, so that whoever searches for one of their names has found them all.
    """

    name: str
    xp: ModuleType

    def asarray(self, array: Any) -> Any:
        """The array on this device; copied only if it is elsewhere."""
        return self.xp.asarray(array)

    def to_host(self, array: Any) -> np.ndarray:
        """The array in host memory, as NumPy sees it. Waits for the device."""
        return array.get() if hasattr(array, "get") else np.asarray(array)

    def synchronize(self) -> None:
        """Wait until everything that was launched has finished; returns at once on the CPU."""
        if self.name.startswith("cuda"):
            self.xp.cuda.get_current_stream().synchronize()


def why_no_gpu() -> str | None:
    """None if CuPy finds a usable GPU; otherwise the reason, in one sentence."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return "CuPy is not installed (pip install 'minifer[cuda13]' or 'minifer[cuda12]')"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own CUDARuntimeError, which can't be named without CuPy
        return f"CuPy is installed but finds no usable NVIDIA driver ({error})"
    return None if count > 0 else "CuPy is installed but the machine has no NVIDIA GPU"


def select_device(name: str = "auto") -> Device:
    """The device called `name`: `auto`, `cpu`, `cuda`, `cuda:N` or `strict`.

    `strict` is a stand-in for CuPy on machines without a GPU. Raises UsageError for any other name and DeviceError,
    with the reason, where the device is not to be had.

    >>> select_device("cpu").name
    'cpu'
    """
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:N or strict")
    if name == "strict":
        return Device("strict", _strict_module())
    if name == "cpu" or (name == "auto" and why_no_gpu() is not None):
        return Device("cpu", np)
    return _cuda_device(int(match[1] or 0))


def _strict_module() -> ModuleType:
    """The stand-in lies among the tools for testing, above everything that may import it. So it is no import here: it
    is looked for by name when somebody asks for it, and its absence is an error like that of a GPU."""
    try:
        return importlib.import_module(".apps.testing.strict_cupy", "minifer").xp
    except ImportError as error:
        raise DeviceError(f"the device 'strict' (a stand-in for CuPy) is not to be had here: {error}") from error


def _cuda_device(index: int) -> Device:
    reason = why_no_gpu()
    if reason is not None:
        raise DeviceError(f"no CUDA device: {reason}; use --device cpu")
    cupy = importlib.import_module("cupy")
    count = cupy.cuda.runtime.getDeviceCount()
    if index >= count:
        raise DeviceError(f"no CUDA device {index}: this machine has {count} (cuda:0 to cuda:{count - 1})")
    cupy.cuda.Device(index).use()
    return Device(f"cuda:{index}", cupy)

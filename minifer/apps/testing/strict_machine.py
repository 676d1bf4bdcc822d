"""What the strict stand-in for CuPy knows about its imaginary GPU: counts, a graph being recorded, page-locked memory.

One machine per process, as CuPy has one current device, stream and memory pool per process; tests reset its counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class StrictError(RuntimeError):
    """What a GPU would have refused, or worse, would have done silently."""


class CaptureError(StrictError):
    """Something that cannot be recorded into a CUDA graph: waiting, taking memory, copying, cuBLAS."""


@dataclass
class Machine:
    """Counts since the last `reset`, and the state of the one imaginary GPU.

    `launches` are operations the host started one by one, `graph_launches` replays, `graph_nodes` the kernels inside
    them. `syncs` are all the times the host had to wait, `event_waits` those of them that waited for an event.
    """

    launches: int = 0
    graph_launches: int = 0
    graph_nodes: int = 0
    allocations: int = 0
    uploads: int = 0
    syncs: int = 0
    event_waits: int = 0
    products: int = 0
    total_bytes: int = 8 << 30
    free_bytes: int = 8 << 30
    seed: int = 0
    """In which order the threads of a kernel run; 0 is their own."""
    current: Any = None
    """The stream that work goes to; None is the null stream."""
    work: dict[Any, int] = field(default_factory=dict)
    """Operations in each stream since the host last waited for it."""
    behind: dict[tuple[Any, Any], int] = field(default_factory=dict)
    """(a, b) -> how many operations of stream b are certain to be over when stream a goes on."""
    recording: list[Callable[[], None]] | None = None
    deferred: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    pinned: set[tuple[int, int]] = field(default_factory=set)

    def reset(self) -> None:
        """All counts to zero."""
        self.launches = self.graph_launches = self.graph_nodes = self.allocations = 0
        self.uploads = self.syncs = self.event_waits = self.products = 0

    def abandon(self) -> None:
        """Forget whatever is under way: a failed test must not disturb the next one."""
        self.recording, self.current = None, None
        self.deferred.clear()
        self.work.clear()
        self.behind.clear()

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        if self.recording is not None:
            raise CaptureError(f"{what} while a graph is recorded: the host would wait for work that is not running")
        self.syncs += 1
        self.deliver()
        self.work.clear()
        self.behind.clear()

    def enqueue(self, what: str) -> None:
        """Something goes into the current stream: what other streams are still doing must not matter to it."""
        for other, count in self.work.items():
            if other is not self.current and count > self.behind.get((self.current, other), 0):
                raise StrictError(f"{what} in one stream while another still works: wait for its event first")
        self.work[self.current] = self.work.get(self.current, 0) + 1

    def deliver(self) -> None:
        """Finish the copies that were going on in the background."""
        for out, value in self.deferred:
            out[...] = value
        self.deferred.clear()

    def compute(self, what: str, *, product: bool = False, allocates: bool = True) -> None:
        """An array operation: one launch, mostly into new memory; products go to cuBLAS."""
        if self.recording is not None:
            if product:
                raise NotImplementedError(f"{what} while a graph is recorded: CuPy cannot record cuBLAS")
            raise CaptureError(f"{what} while a graph is recorded: record kernels that write to memory taken before")
        self.enqueue(what)
        self.launches += 1
        self.products += product
        self.allocations += allocates

    def take(self, what: str) -> None:
        """New memory, and no launch."""
        if self.recording is not None:
            raise CaptureError(f"{what} takes memory while a graph is recorded")
        self.allocations += 1

    def upload(self, what: str, source: np.ndarray, *, background: bool) -> None:
        """A copy from the host; from ordinary memory the host has to stand by."""
        if self.recording is not None:
            raise CaptureError(f"{what} while a graph is recorded: a graph would copy the same bytes every time")
        self.enqueue(what)
        self.uploads += 1
        if not (background and self.is_pinned(source)):
            self.syncs += 1

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether an array lies in page-locked memory."""
        start = array.ctypes.data
        return any(first <= start and start + array.nbytes <= first + size for first, size in self.pinned)

    def defer(self, out: np.ndarray, value: np.ndarray) -> None:
        """A copy to the host in the background: until somebody waits, what is there is rubbish."""
        if self.recording is not None:
            raise CaptureError(".get() while a graph is recorded")
        if not self.is_pinned(out):
            raise StrictError(".get(blocking=False) into memory that is not page-locked waits all the same")
        self.enqueue(".get()")
        poison(out)
        self.deferred.append((out, value))


def poison(array: np.ndarray) -> np.ndarray:
    """Fill with bytes 0xff (NaN, or -1): what was never written must not pass for a small number."""
    if array.size:
        array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


machine = Machine()


def unwrapped(value: Any, who: str) -> Any:
    """The NumPy array inside a device array, also within lists. Raises TypeError for a host array."""
    if hasattr(value, "_on_device"):
        return value._on_device
    if isinstance(value, np.ndarray):
        raise TypeError(f"{who} was given a NumPy array: move it with xp.asarray")
    if isinstance(value, (list, tuple)):
        return type(value)([unwrapped(item, who) for item in value])
    return value

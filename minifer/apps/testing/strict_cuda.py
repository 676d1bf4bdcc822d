"""`cupy.cuda` of the strict stand-in: streams, events, graphs, kernels, page-locked memory, one imaginary GPU.

Everything runs at once and in order, so what a real GPU does later is done here too early; the rules about it are kept
all the same. A recorded graph knows arrays by their addresses and does not keep them alive: replaying one whose memory
was freed is an error here, and rubbish there. Kernels are the real .cu files, run by `kernel_cpu.py` through g++.
"""

# ruff: noqa: ARG002  parameters are CuPy's, and some mean nothing here

import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minifer.apps.testing.kernel_cpu import CpuKernels, compile_kernels
from minifer.apps.testing.strict_array import StrictArray
from minifer.apps.testing.strict_machine import CaptureError, StrictError, machine, poison


class Event:
    """A mark in a stream, to wait for."""

    def __init__(self, block: bool = True, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._recorded = False
        self.behind: dict[Any, int] = {}

    def record(self, stream: Any = None) -> None:
        """Put the mark behind everything launched so far."""
        if machine.recording is not None:
            raise CaptureError("an event while a graph is recorded")
        self._recorded = True
        queue = machine.current if stream is None else stream.key
        self.behind = {queue: machine.work.get(queue, 0)}

    def synchronize(self) -> None:
        """Wait until the device has come to the mark."""
        if not self._recorded:
            raise StrictError("waiting for an event that was never recorded: it returns at once")
        machine.wait("Event.synchronize()")
        machine.event_waits += 1


class Graph:
    """What `Stream.end_capture` gives: kernels with their arguments' addresses."""

    def __init__(self, nodes: Sequence[Callable[[], None]]) -> None:
        self._nodes = tuple(nodes)

    def launch(self, stream: Any = None) -> None:
        """Run all kernels again."""
        if machine.recording is not None:
            raise CaptureError("launching a graph while another is recorded")
        machine.enqueue("a graph")
        machine.graph_launches += 1
        machine.graph_nodes += len(self._nodes)
        for node in self._nodes:
            node()


class Stream:
    """A queue of work. Everything runs at once here, but work in two streams with no event between them is refused."""

    null: "Stream"

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None
    ) -> None:
        self.is_null = null
        self._before: list[Any] = []

    @property
    def key(self) -> Any:
        """How the machine names this stream."""
        return None if self.is_null else self

    def __enter__(self) -> "Stream":
        self._before.append(machine.current)
        machine.current = self.key
        return self

    def __exit__(self, *_: object) -> None:
        machine.current = self._before.pop()

    def wait_event(self, event: Event) -> None:
        """What comes now runs after the event; the host does not wait."""
        for other, count in event.behind.items():
            machine.behind[self.key, other] = max(count, machine.behind.get((self.key, other), 0))

    def synchronize(self) -> None:
        """Wait for everything in the stream."""
        machine.wait("Stream.synchronize()")

    def begin_capture(self, mode: Any = None) -> None:
        """From here on launches are recorded and not run."""
        if self.is_null:
            raise CaptureError("the null stream cannot be recorded")
        if machine.recording is not None:
            raise CaptureError("a graph is being recorded already")
        machine.recording = []

    def end_capture(self) -> Graph:
        """The recorded graph."""
        nodes, machine.recording = machine.recording, None
        if nodes is None:
            raise CaptureError("no graph is being recorded")
        return Graph(nodes)


Stream.null = Stream(null=True)


class RawModule:
    """CUDA C, compiled for this machine's CPU when it is asked for."""

    def __init__(self, code: str | None = None, *, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        if not code:
            raise StrictError("RawModule needs code")
        self._code, self._options = code, options
        self._kernels: CpuKernels | None = None

    def compile(self, log_stream: Any = None) -> None:
        """Compile now. Raises DeviceError where there is no C++ compiler, UsageError for a fault in the source."""
        self._kernels = compile_kernels(self._code, options=self._options)

    def get_function(self, name: str) -> "RawKernel":
        """A kernel by its name."""
        if self._kernels is None:
            self.compile()
        assert self._kernels is not None
        if name not in self._kernels.signatures:
            raise StrictError(f"the module has no kernel {name!r}")
        return RawKernel(self._kernels, name)


class RawKernel:
    """A kernel that refuses what the real one would misread."""

    def __init__(self, kernels: CpuKernels, name: str) -> None:
        self._kernels, self._name = kernels, name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Launch it, or record it."""
        signature = self._kernels.signatures[self._name]
        if len(args) != len(signature):
            raise StrictError(f"{self._name} takes {len(signature)} arguments, not {len(args)}")
        for parameter, value in zip(signature, args, strict=True):
            self._check(parameter, value)
        places = [Place(value) if isinstance(value, StrictArray) else value for value in args]

        def node() -> None:
            real = [place.array(self._name) if isinstance(place, Place) else place for place in places]
            self._kernels.launch(self._name, grid, block, real, shared_bytes=shared_mem, seed=machine.seed)

        if machine.recording is not None:
            machine.recording.append(node)
        else:
            machine.enqueue(self._name)
            machine.launches += 1
            node()

    def _check(self, parameter: Any, value: Any) -> None:
        what = f"{self._name}: {parameter.name}"
        if parameter.is_pointer:
            if value is not None and not isinstance(value, StrictArray):
                raise StrictError(f"{what} is an address on the device, not {type(value).__name__}")
        elif not isinstance(value, np.generic) or value.dtype.str[1:] != parameter.code:
            raise StrictError(
                f"{what} is a C number of kind {parameter.code}; {value!r} is a {type(value).__name__}: CuPy "
                f"takes a Python float for a double and an int for a long long"
            )


class Place:
    """Where an array lies, without keeping it alive: what a graph remembers of it."""

    def __init__(self, array: StrictArray) -> None:
        inner = root = array._on_device
        while isinstance(root.base, np.ndarray):
            root = root.base
        self._root = weakref.ref(root)
        self._offset = inner.ctypes.data - root.ctypes.data
        self._shape, self._dtype, self._strides = inner.shape, inner.dtype, inner.strides

    def array(self, kernel: str) -> np.ndarray:
        """The array, if its memory has not been given back."""
        root = self._root()
        if root is None:
            raise StrictError(f"{kernel}: a graph is replayed whose array has been freed since it was recorded")
        whole = root.reshape(-1).view(np.uint8)
        return np.ndarray(self._shape, self._dtype, whole.data, self._offset, self._strides)


def alloc_pinned_memory(size: int) -> Any:
    """`size` bytes of page-locked host memory."""
    memory = np.zeros(size, dtype=np.uint8)
    place = (memory.ctypes.data, size)
    machine.pinned.add(place)
    # Ordinary memory comes to lie at the same address as soon as this is freed.
    weakref.finalize(memory, machine.pinned.discard, place)
    return poison(memory).data


class Device:
    """The imaginary GPU: an H200's abilities on eight multiprocessors."""

    id = 0
    compute_capability = "90"
    attributes: dict[str, int] = {"MultiProcessorCount": 8}  # noqa: RUF012  as in CuPy, a dictionary

    def __init__(self, device: int | None = None) -> None:
        if device not in (None, 0):
            raise StrictError(f"there is one strict device, not number {device}")

    def use(self) -> None:
        """Make it the current one."""

    def synchronize(self) -> None:
        """Wait for everything."""
        machine.wait("Device.synchronize()")


class MemoryPool:
    """CuPy keeps freed memory; this one has none to keep."""

    def free_bytes(self) -> int:
        """Bytes held but not in use."""
        return 0

    def free_all_blocks(self) -> None:
        """Give the held bytes back."""


runtime = SimpleNamespace(
    memGetInfo=lambda: (machine.free_bytes, machine.total_bytes),
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda _: {"name": b"strict", "major": 9, "minor": 0, "multiProcessorCount": 8},
)

cuda = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    Graph=Graph,
    Device=Device,
    runtime=runtime,
    alloc_pinned_memory=alloc_pinned_memory,
    get_current_stream=lambda: Stream.null if machine.current is None else machine.current,
)

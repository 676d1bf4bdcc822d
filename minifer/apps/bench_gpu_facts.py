"""The numbers about CuPy and a GPU on which minifer's design rests, measured one by one.

Each fact is a function that takes a `Bench` and returns numbers; what it raises is recorded in its place, since some of
them are about what does *not* work: a product in three dimensions falls back to float32 or fails, a product by cuBLAS
cannot be recorded in a graph. With `bench.small` all sizes are tiny, which is how the strict stand-in and its tests run
the same code.

Times are those of CUDA events, taken around many calls; `queue_us` is what a call costs the host until it returns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minifer.apps.testing.kernel_sources import Build
from minifer.device import Device
from minifer.errors import MiniferError
from minifer.ops.cuda_launch import act_dtype, kernel_source

Numbers = Any
EPS = np.float32(1e-5)


@dataclass
class Bench:
    """A device, and how much may be asked of it."""

    device: Device
    small: bool = False
    _module: Any = field(default=None, repr=False)

    @property
    def xp(self) -> Any:
        """CuPy, or what stands for it."""
        return self.device.xp

    def count(self, many: int) -> int:
        """`many` repetitions, or two."""
        return 2 if self.small else many

    def size(self, large: int, small: int) -> int:
        """A size for a GPU, or one for the stand-in."""
        return small if self.small else large

    def kernel(self, name: str) -> Any:
        """One of our kernels in float16."""
        if self._module is None:
            build = Build()
            code = kernel_source(build.dtype, build.head_dim, build.group)
            self._module = self.xp.RawModule(code=code, options=("-std=c++17",))
        return self._module.get_function(name)

    def numbers(self, *shape: int, dtype: Any = np.float16) -> Any:
        """Random numbers of a few hundredths, repeated where there are many: on zeros a GPU draws less power."""
        block = np.random.default_rng(0).standard_normal(min(int(np.prod(shape)), 1 << 20)).astype(np.float32)
        return self.xp.asarray(np.resize(block * np.float32(0.05), shape).astype(dtype))

    def time(self, call: Callable[[], object], repeats: int, warm_up: int = 5) -> dict[str, float]:
        """Microseconds of a call: on the device, and on the host until it is queued."""
        for _ in range(self.count(warm_up)):
            call()
        self.device.synchronize()
        repeats = self.count(repeats)
        if not self.device.name.startswith("cuda"):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            us = (time.perf_counter() - start) / repeats * 1e6
            return {"gpu_us": us, "queue_us": us}
        first, last = self.xp.cuda.Event(), self.xp.cuda.Event()
        first.record()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        queued = (time.perf_counter() - start) / repeats
        last.record()
        last.synchronize()
        return {"gpu_us": self.xp.cuda.get_elapsed_time(first, last) / repeats * 1e3, "queue_us": queued * 1e6}

    def behind(self, stream: Any) -> None:
        """Let a stream wait for what has been launched so far."""
        event = self.xp.cuda.Event()
        event.record()
        stream.wait_event(event)

    def seconds(self, call: Callable[[], object], repeats: int, warm_up: int = 3) -> float:
        """Seconds of a call on the device."""
        return self.time(call, repeats, warm_up)["gpu_us"] / 1e6


def copy_bytes_per_s(bench: Bench) -> Numbers:
    """Copying 2 GiB within the device; bytes read and bytes written both count."""
    x = bench.xp.zeros(bench.size(1 << 31, 1 << 12), dtype=np.uint8)
    y = bench.xp.empty_like(x)
    return 2 * x.nbytes / bench.seconds(lambda: bench.xp.copyto(y, x), 10)


def launch_of_a_kernel(bench: Bench) -> Numbers:
    """One of our kernels, started 2,000 times: `rms_norm` of one row."""
    kernel, args = bench.kernel("rms_norm"), _norm_arguments(bench)
    return bench.time(lambda: kernel((1,), (256,), args), 2000)


def array_addition(bench: Bench) -> Numbers:
    """`x + x` for 576 numbers: what an array operation costs."""
    x = bench.numbers(1, 576)
    return bench.time(lambda: x + x, 2000)


def array_addition_in_place(bench: Bench) -> Numbers:
    """The same with `out=`: without an allocation."""
    x = bench.numbers(1, 576)
    y = bench.xp.empty_like(x)
    return bench.time(lambda: bench.xp.add(x, x, out=y), 2000)


def product_of_a_row(bench: Bench) -> Numbers:
    """`x @ w.T` for one row of 576: what calling cuBLAS costs."""
    x, w = bench.numbers(1, 576), bench.numbers(bench.size(576, 32), 576)
    return bench.time(lambda: x @ w.T, 2000)


def norm_in_array_operations(bench: Bench) -> Numbers:
    """`rms_norm` of one row as array code: ten operations."""
    x, w = bench.numbers(1, 576), bench.numbers(576)

    def call() -> None:
        x32 = x.astype(np.float32)
        scale = bench.xp.sqrt((x32 * x32).sum(axis=-1, keepdims=True) / x32.shape[-1] + EPS)
        (x32 / scale * w.astype(np.float32)).astype(np.float16)

    return bench.time(call, 500)


def products_by_type(bench: Bench) -> Numbers:
    """FLOP/s of an 8192 cubed product, two-dimensional, by type."""
    n = bench.size(8192, 32)
    found: dict[str, Any] = {}
    for name in ("float16", "bfloat16"):
        try:
            found[name] = 2 * n**3 / _product_seconds(bench, bench.numbers(n, n, dtype=act_dtype(name)))
        except Exception as error:  # what a library raises for a type that it does not know
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


def _product_seconds(bench: Bench, a: Any) -> float:
    return bench.seconds(lambda: a @ a.T, 10)


def products_in_three_dimensions(bench: Bench) -> Numbers:
    """FLOP/s of eight products of 2048 cubed as one array of three dimensions: expected to be slow, or to fail."""
    n = bench.size(2048, 8)
    a = bench.numbers(8, n, n)
    return 8 * 2 * n**3 / bench.seconds(lambda: bench.xp.matmul(a, a), 10)


def recording_a_product(bench: Bench) -> Numbers:
    """Whether CuPy lets cuBLAS into a graph: expected to raise NotImplementedError."""
    x, w = bench.numbers(4, 64), bench.numbers(64, 64)
    x @ w.T
    stream = bench.xp.cuda.Stream(non_blocking=True)
    bench.behind(stream)
    with stream:
        stream.begin_capture()
        try:
            x @ w.T
        finally:
            stream.end_capture()
    return "recorded"


def node_of_a_graph(bench: Bench) -> Numbers:
    """300 small kernels that wait for each other, in a graph: microseconds of each, and of starting the graph."""
    nodes = bench.size(300, 3)
    kernel, args = bench.kernel("rms_norm"), _norm_arguments(bench)
    kernel((1,), (256,), args)  # a kernel that was never launched is not loaded yet
    stream = bench.xp.cuda.Stream(non_blocking=True)
    bench.behind(stream)
    with stream:
        stream.begin_capture()
        try:
            for _ in range(nodes):
                kernel((1,), (256,), args)
        finally:
            graph = stream.end_capture()
        found = bench.time(lambda: graph.launch(stream), 50)
        stream.synchronize()
    return {"node_us": found["gpu_us"] / nodes, "launch_us": found["queue_us"]}


def few_rows(bench: Bench) -> Numbers:
    """Bytes per second of a weight that one or four rows are multiplied with: our kernel, and cuBLAS.

    The weights take turns and are together larger than the L2 cache.
    """
    shapes = ((960, 576), (3072, 576), (6144, 2048), (16384, 2048), (49152, 576), (128256, 2048))
    found = {}
    for outputs, inputs in ((40, 64),) if bench.small else shapes:
        count = 2 if bench.small else max(2, 300_000_000 // (outputs * inputs * 2))
        first = bench.numbers(outputs, inputs)
        weights = [first, *(first.copy() for _ in range(count - 1))]
        for rows in (1, 4):
            for name, call in _few_rows_calls(bench, weights, rows, outputs, inputs):
                rate = outputs * inputs * 2 / bench.seconds(call, 100, 10)
                found[f"{outputs} x {inputs}, {rows} rows, {name}"] = rate
        del weights, first
    return found


def _few_rows_calls(
    bench: Bench, weights: list[Any], rows: int, outputs: int, inputs: int
) -> list[tuple[str, Callable[[], object]]]:
    x, y = bench.numbers(rows, inputs), bench.xp.zeros((rows, outputs), dtype=np.float16)
    kernel, turn = bench.kernel(f"skinny_gemm_b{rows}"), [0]
    sizes = (np.int32(outputs), np.int32(inputs))

    def weight() -> Any:
        turn[0] += 1
        return weights[turn[0] % len(weights)]

    def own() -> None:
        kernel((1, -(-outputs // 4)), (128,), (x, weight(), y, *sizes))

    return [("minifer", own), ("cuBLAS", lambda: x @ weight().T)]


def _norm_arguments(bench: Bench) -> tuple[Any, ...]:
    stream, gain = bench.numbers(1, 576, dtype=np.float32), bench.numbers(576)
    return stream, None, None, None, gain, bench.xp.zeros((1, 576), dtype=np.float16), np.int32(576), EPS


FACTS: tuple[Callable[[Bench], Numbers], ...] = (
    copy_bytes_per_s,
    launch_of_a_kernel,
    array_addition,
    array_addition_in_place,
    product_of_a_row,
    norm_in_array_operations,
    products_by_type,
    products_in_three_dimensions,
    recording_a_product,
    node_of_a_graph,
    few_rows,
)


def measure_facts(bench: Bench, say: Callable[[str], None]) -> dict[str, Any]:
    """All facts by name; what one of them raises is its value."""
    found: dict[str, Any] = {}
    for fact in FACTS:
        say(fact.__name__.replace("_", " "))
        try:
            found[fact.__name__] = fact(bench)
        except MiniferError as error:
            found[fact.__name__] = f"{type(error).__name__}: {error}"
        except Exception as error:  # CuPy's own, and the whole point of some of the facts
            found[fact.__name__] = f"{type(error).__name__}: {error}"[:300]
    return found

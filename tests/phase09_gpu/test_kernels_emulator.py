"""The header that runs CUDA C on a CPU: barriers, shuffles, shared memory, 16-bit numbers, and what it refuses."""

import os

import numpy as np
import pytest

from minifer.apps.testing import kernel_cpu
from minifer.apps.testing.kernel_case import encode
from minifer.apps.testing.kernel_cpu import KernelFault, compile_kernels, why_no_compiler
from minifer.errors import DeviceError, UsageError

pytestmark = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))

SOURCE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void all_but_one(float* x) {
    if (threadIdx.x == 40) return;
    __syncthreads();
    x[threadIdx.x] = 1.0f;
}
extern "C" __global__ void half_a_warp(float* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}
extern "C" __global__ void lane_without_a_thread(float* x) {
    float other = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 16);
    x[threadIdx.x] = other;
}
extern "C" __global__ void shuffles(int* out) {
    int i = threadIdx.x;
    out[i] = __shfl_sync(~0u, i, 5);
    out[32 + i] = __shfl_up_sync(~0u, i, 2);
    out[64 + i] = __shfl_down_sync(~0u, i, 3);
    out[96 + i] = __shfl_xor_sync(~0u, i, 16);
    out[128 + i] = (int)__ballot_sync(~0u, i % 3 == 0);
    out[160 + i] = __shfl_xor_sync(~0u, i, 1, 8);
}
extern "C" __global__ void leftovers(float* out) {
    __shared__ float fixed[32], other[2][16];
    extern __shared__ float dynamic[];
    out[threadIdx.x] = fixed[threadIdx.x] + other[0][0];
    out[32 + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = other[threadIdx.x / 16][threadIdx.x % 16] = dynamic[threadIdx.x] = 1.0f;
}
extern "C" __global__ void who_is_first(int* order, int* counter) {
    if (threadIdx.x == 0) order[atomicAdd(counter, 1)] = blockIdx.x;
}
extern "C" __global__ void convert(const unsigned short* bits, const float* x, float* up, __half* down,
                                   __nv_bfloat16* brain) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    up[i] = __half2float(*reinterpret_cast<const __half*>(bits + i));
    down[i] = __float2half(x[i]);
    brain[i] = __float2bfloat16(x[i]);
}
"""


@pytest.fixture(scope="module")
def kernels():
    """All of them, compiled once."""
    return compile_kernels(SOURCE, name="probe.cu")


def test_a_barrier_that_one_thread_misses(kernels):
    """Hardware may hang; here it is said which block, and how many threads wait where."""
    with pytest.raises(KernelFault, match=r"block \(0, 0, 0\) of 64 threads, 63 wait at __syncthreads\(\), 1 have ret"):
        kernels.launch("all_but_one", (2,), (64,), (np.zeros(64, np.float32),))
    kernels.launch("all_but_one", (1,), (32,), (np.zeros(32, np.float32),))  # and the fibers are usable afterwards


def test_a_shuffle_that_half_the_lanes_miss(kernels):
    """The mask names 32 lanes and 16 come."""
    with pytest.raises(KernelFault, match="16 wait for other lanes"):
        kernels.launch("half_a_warp", (1,), (32,), (np.zeros(32, np.float32),))


def test_a_lane_that_is_not_there_gives_nan(kernels):
    """A block of 24 threads: lanes 24 to 31 exist on no GPU either, and what they hold is undefined."""
    x = np.ones(24, np.float32)
    kernels.launch("lane_without_a_thread", (1,), (24,), (x,))
    assert np.isnan(x[8:16]).all()
    assert (x[:8] == 1).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_shuffles_are_cuda_s(kernels, seed):
    """Every kind, in two orders of lanes."""
    out = np.full(192, -1, np.int32)
    kernels.launch("shuffles", (1,), (32,), (out,), seed=seed)
    lane = np.arange(32)
    assert (out[:32] == 5).all()
    assert (out[32:64] == np.where(lane < 2, lane, lane - 2)).all()
    assert (out[64:96] == np.where(lane > 28, lane, lane + 3)).all()
    assert (out[96:128] == lane ^ 16).all()
    assert (out[128:160] == sum(1 << i for i in range(0, 32, 3))).all()
    assert (out[160:] == lane ^ 1).all()


def test_shared_memory_starts_as_nan_in_every_block(kernels):
    """Static or dynamic, and what the block before has left is gone."""
    out = np.zeros(64, np.float32)
    kernels.launch("leftovers", (3,), (32,), (out,), shared_bytes=128)
    assert np.isnan(out).all()


def test_blocks_come_in_any_order(kernels):
    """In their own with seed 0, in another with another."""
    found = {}
    for seed in (0, 1, 2):
        order, counter = np.full(9, -1, np.int32), np.zeros(1, np.int32)
        kernels.launch("who_is_first", (9,), (32,), (order, counter), seed=seed)
        found[seed] = order.tolist()
    assert found[0] == list(range(9))
    assert sorted(found[1]) == sorted(found[2]) == found[0]
    assert len({tuple(order) for order in found.values()}) == 3


@pytest.mark.parametrize("options", [(), ("-DEMU_SOFT_HALF",)], ids=["compiler's", "own"])
def test_numbers_of_sixteen_bits(options):
    """All 65,536 halves, and floats of every size to both formats, against NumPy."""
    kernels = compile_kernels(SOURCE, name="probe.cu", options=options)
    rng = np.random.default_rng(0)
    bits = np.arange(65536, dtype=np.uint16)
    x = rng.integers(0, 2**32, 65536, dtype=np.uint32).view(np.float32)
    halves = bits[:30000].view(np.float16).astype(np.float32)
    x[:30000] = (halves + np.roll(halves, 1)) / 2  # ties, subnormals among them
    up, down, brain = np.zeros(65536, np.float32), np.zeros(65536, np.float16), np.zeros(65536, np.uint16)
    kernels.launch("convert", (256,), (256,), (bits, x, up, down, brain))
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(up, bits.view(np.float16).astype(np.float32), equal_nan=True)
        assert np.array_equal(down, x.astype(np.float16), equal_nan=True)
    assert np.array_equal(brain, encode(x, "bfloat16"))


def test_barriers_are_counted(kernels):
    """Where, and how many threads came by."""
    source = 'extern "C" __global__ void two(int n) {\n for (int i = 0; i < n; ++i) __syncthreads();\n}'
    report = compile_kernels(source, name="two.cu").launch("two", (2,), (96,), (3,))
    assert [(site.file, site.line, site.threads) for site in report.barriers] == [("two.cu", 2, 2 * 96 * 3)]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((np.zeros(2, np.float64),), "x has type float64, and the kernel reads f4"),
        ((np.zeros((4, 4), np.float32)[:, 0],), "is a view with gaps"),
        (([1.0],), "x is an array, not list"),
        ((), "takes 1 arguments, not 0"),
        ((np.broadcast_to(np.float32(1), (4,)),), "view with gaps|read-only"),
    ],
)
def test_arguments_that_do_not_fit(kernels, args, complaint):
    """RawKernel would take them all."""
    with pytest.raises(UsageError, match=complaint):
        kernels.launch("all_but_one", (1,), (32,), args)


@pytest.mark.parametrize(
    ("grid", "block"), [((0,), (32,)), ((1,), (2048,)), ((1, 70000), (32,)), ((1,), (32, 32, 2)), ((1,), (1, 1, 65))]
)
def test_sizes_that_no_gpu_has(kernels, grid, block):
    """Of a grid, and of a block."""
    with pytest.raises((UsageError, KernelFault), match=r"between 1 and|1 to 1024 threads"):
        kernels.launch("all_but_one", grid, block, (np.zeros(4096, np.float32),))


def test_what_does_not_compile_is_one_line():
    """With the reader's file and line; INFINITY is not there, as with NVRTC."""
    source = 'extern "C" __global__ void f(float* x) {\n    x[0] = INFINITY;\n}'
    with pytest.raises(
        UsageError, match=r"^the C\+\+ compiler refuses the kernel: mine\.cu:2:\d+: error: .INFINITY."
    ) as e:
        compile_kernels(source, name="mine.cu")
    assert "\n" not in str(e.value)
    with pytest.raises(UsageError, match="has no kernel"):
        compile_kernels("int f() { return 1; }")


def test_without_a_compiler_the_reason_is_given(monkeypatch):
    """One line, with what to do."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="there is no 'no-such-compiler'") as e:
        compile_kernels(SOURCE)
    assert "\n" not in str(e.value)


def test_a_library_is_compiled_once(monkeypatch, tmp_path):
    """The second time it comes from the cache folder, whatever has become of the compiler."""
    monkeypatch.setenv("MINIFER_HOME", str(tmp_path))
    source = 'extern "C" __global__ void f(float* x) { x[0] = 7.0f; }'
    compile_kernels(source)
    assert len(list(tmp_path.rglob("*.so"))) == 1
    monkeypatch.setattr(kernel_cpu.subprocess, "run", None)
    x = np.zeros(1, np.float32)
    compile_kernels(source).launch("f", (1,), (1,), (x,))
    assert x[0] == 7


def test_the_cache_does_not_grow_for_ever(monkeypatch, tmp_path):
    """The oldest libraries go."""
    monkeypatch.setattr(kernel_cpu, "MOST_LIBRARIES", 2)
    for age, name in enumerate(("new", "newer", "old")):
        (tmp_path / f"{name}.so").touch()
        os.utime(tmp_path / f"{name}.so", (100 - 50 * (name == "old"), 100 - 50 * (name == "old") + age % 2))
    kernel_cpu._prune(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["new", "newer"]

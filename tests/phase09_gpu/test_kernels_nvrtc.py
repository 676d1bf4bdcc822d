"""NVIDIA's own compiler on every kernel, without a GPU: it compiles, nothing spills, and registers stay within limits.

65,536 registers are shared by the threads of a multiprocessor: 64 each leave room for 1,024 threads at a time, 32 for
2,048. A kernel that only waits for memory needs many threads; attention trades some of them for keeping heads in
registers. The limits are what was measured, rounded up to the next step that costs a thread.
"""

import re

import pytest

from minifer.apps.testing.kernel_sources import kernel_files, kernel_to_file
from minifer.apps.testing.nvrtc import ARCHITECTURES, compile_for, why_no_nvrtc
from minifer.errors import UsageError
from minifer.ops.cuda_launch import DTYPES, kernel_source

pytestmark = pytest.mark.skipif(why_no_nvrtc() is not None, reason=str(why_no_nvrtc()))

#: Most registers of a thread, by kernel; the attention kernels by numbers of a head and heads of a group.
REGISTERS = {
    "embed": 32, "rms_norm": 32, "swiglu": 32, "argmax_advance": 40, "sample_advance": 64, "rope_kv_write": 64,
    "paged_combine": 64, "skinny_gemm_b1": 40, "skinny_gemm_b2": 48, "skinny_gemm_b4": 56, "skinny_gemm_b8": 80,
    "skinny_gemm_wide_b1": 40, "skinny_gemm_wide_b2": 48, "skinny_gemm_wide_b4": 56, "skinny_gemm_wide_b8": 80,
}  # fmt: skip
ATTENTION = {
    (64, 3): {"paged_split": 48, "flash_prefill": 96},
    (128, 8): {"paged_split": 128, "flash_prefill": 112},
    (128, 16): {"paged_split": 240, "flash_prefill": 112},
}
STATIC_SHARED_BYTES = 48 * 1024


def check(dtype, head, architecture):
    """Compile all kernels of a build and look at each."""
    found = compile_for(kernel_source(dtype, *head), architecture)
    assert set(found) == set(kernel_to_file(kernel_files()))
    limits = REGISTERS | ATTENTION[head]
    assert not {name: r for name, r in found.items() if r.registers > limits[name]}
    assert not {name: r for name, r in found.items() if r.spill_bytes or r.stack_bytes}
    assert not {name: r for name, r in found.items() if r.shared_bytes > STATIC_SHARED_BYTES}


def test_one_build_for_hopper():
    """SmolLM2's heads in bfloat16; the others take half a minute (`--slow`)."""
    check("bfloat16", (64, 3), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_type_for_every_gpu(dtype, architecture):
    """A100, H100 and B200."""
    check(dtype, (64, 3), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("head", [head for head in ATTENTION if head != (64, 3)], ids=lambda h: f"{h[0]}x{h[1]}")
def test_large_heads_and_groups(head, architecture):
    """The largest head and the largest group that minifer takes, which want the most registers."""
    check("float32", head, architecture)


def test_the_limits_can_be_broken():
    """A kernel that wants a thousand numbers at once spills, and the report says so."""
    source = """extern "C" __global__ void __launch_bounds__(1024) greedy(float* x) {
        float a[200];
        for (int i = 0; i < 200; ++i) a[i] = x[i * 1024 + threadIdx.x];
        for (int r = 0; r < 3; ++r) for (int i = 0; i < 200; ++i) a[i] = a[i] * a[(i + 7) % 200] + x[r];
        for (int i = 0; i < 200; ++i) x[i * 1024 + threadIdx.x] = a[i];
    }"""
    greedy = compile_for(source, "sm_90")["greedy"]
    assert greedy.registers <= 64
    assert greedy.spill_bytes + greedy.stack_bytes > 0


def test_what_nvrtc_does_not_know_is_one_line():
    """INFINITY comes with <math.h>, which is not there."""
    source = kernel_source("float16", 64, 3).replace("return NEG_BIG", "return INFINITY")
    assert "INFINITY" not in re.sub(r"//.*", "", source), "no kernel uses it"
    with pytest.raises(
        UsageError, match=r'NVRTC refuses my\.cu for sm_90: my\.cu\(1\): error: identifier "INFINITY"'
    ) as e:
        compile_for('extern "C" __global__ void f(float* x) { x[0] = INFINITY; }', "sm_90", name="my.cu")
    assert "\n" not in str(e.value)

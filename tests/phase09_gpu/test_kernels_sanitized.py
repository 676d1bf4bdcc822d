"""Every kernel under the sanitizers for addresses and undefined behaviour: no step beside an array."""

import os
import subprocess
import sys

import pytest

from minifer.apps.testing.kernel_cpu import compiler, why_no_compiler
from tests.house import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler())),
]


@pytest.fixture(scope="module")
def environment():
    """With the sanitizers' libraries loaded before anything else; leaks are Python's own affair."""
    found = [
        subprocess.run(
            [compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(os.path.isabs(path) for path in found):
        pytest.skip(f"{compiler()} comes without its sanitizers")
    more = {"LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    return os.environ | more


def run(environment, *words):
    """The script in a process of its own."""
    command = [sys.executable, "-m", "tests.phase09_gpu.sanitized", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_kernel_steps_out_of_line(environment, dtype):
    """All of them, all shapes, two orders of threads."""
    done = run(environment, dtype)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ": fine" in done.stdout


@pytest.mark.parametrize(
    ("mutant", "place"), [("swiglu_one_too_many", "swiglu.cu:"), ("gemm_writes_past_the_end", "skinny_gemm.cu:")]
)
def test_a_step_too_far_is_named(environment, mutant, place):
    """With the line of the kernel."""
    done = run(environment, "mutant", mutant)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert place in done.stderr

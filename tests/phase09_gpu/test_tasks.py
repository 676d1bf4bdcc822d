"""The lab task of phase 09: a kernel, run thread by thread on the CPU, so that nobody needs a GPU to write one."""

import pytest

from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.testing.kernel_run import run_on_cpu
from minifer.apps.testing.kernel_sources import Build, kernel_files
from minifer.apps.testing.kernel_specs import SPECS, make_case


@pytest.fixture(scope="module")
def kernels():
    """The student's swiglu.cu where there is one, and the reference's other files, compiled for the CPU."""
    if why_no_compiler() is not None:
        pytest.skip(str(why_no_compiler()))
    from minifer.apps.testing.kernel_cpu import compile_kernels
    from minifer.apps.testing.kernel_sources import assemble

    return {"swiglu": compile_kernels(assemble("swiglu.cu", kernel_files()), options=Build().options)}


def check(number, seed, kernels):
    """One shape against float64, the threads in an order that the seed decides."""
    case = make_case("swiglu", Build(), SPECS["swiglu"].shapes[number], seed=seed)
    outcomes, _ = run_on_cpu(case, seed=seed, kernels=kernels)
    assert not [str(outcome) for outcome in outcomes if not outcome.fine]


@pytest.mark.task("9.1")
def test_swiglu_is_its_formula(kernels, rng):
    """The first shape, in two orders."""
    for _ in range(2):
        check(0, int(rng.integers(1, 99)), kernels)


@pytest.mark.task("9.1")
def test_swiglu_owns_what_it_writes(kernels, rng):
    """All shapes; around every array lies NaN, and it must stay."""
    for number in range(len(SPECS["swiglu"].shapes)):
        check(number, int(rng.integers(1, 99)), kernels)

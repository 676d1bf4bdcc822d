"""Every kernel against float64, its threads in several orders, on a machine that has a C++ compiler and no GPU.

Inputs are fresh, outputs start as NaN, what belongs to nobody is NaN, and around every array lies NaN. The default run
takes one number type whole and a look at the other two; `--slow` runs everything.
"""

import numpy as np
import pytest

from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.testing.kernel_run import all_kernels, run_on_cpu
from minifer.apps.testing.kernel_sources import Build, kernel_files, kernel_to_file
from minifer.apps.testing.kernel_specs import SPECS, make_case

pytestmark = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))

ORDERS = (0, 1, 7)
HEADS = ((64, 3), (128, 8), (16, 2), (80, 1), (128, 16), (32, 5))
BUILDS = [("float16", h) for h in HEADS] + [(d, h) for d in ("bfloat16", "float32") for h in HEADS[:2]]
DTYPES = ("float16", "bfloat16", "float32")


def check(name, build, shape, orders):
    """All orders of threads give what float64 gives."""
    for order in orders:
        outcomes, _ = run_on_cpu(make_case(name, build, shape, seed=order), seed=order)
        assert not [str(outcome) for outcome in outcomes if not outcome.fine], f"order {order}"


@pytest.mark.parametrize(("name", "number"), [(n, i) for n, spec in SPECS.items() for i in range(len(spec.shapes))])
def test_every_shape_in_every_order(name, number):
    """float16, SmolLM2's heads: 64 numbers, three query heads to a kv head."""
    check(name, Build(), SPECS[name].shapes[number], ORDERS)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", SPECS)
def test_other_number_types(name, dtype):
    """bfloat16 and float32 differ in their loads and in what rounds."""
    check(name, Build(dtype), SPECS[name].shapes[0], (3,))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "head"), BUILDS, ids=lambda x: x if isinstance(x, str) else f"{x[0]}x{x[1]}")
def test_everything(dtype, head):
    """Every kernel, number type, size of head and group, shape and order."""
    build = Build(dtype, *head)
    for name, spec in SPECS.items():
        if spec.by_head or head == HEADS[0]:
            for shape in spec.shapes:
                check(name, build, shape, (*ORDERS, 11, 12))


def test_every_kernel_has_a_spec():
    """A kernel that nobody checks is not part of minifer."""
    launched = {launch.kernel for name in SPECS for launch in make_case(name, Build()).launches}
    assert launched == set(kernel_to_file(kernel_files())) == set(all_kernels(Build()).signatures)


@pytest.mark.parametrize("name", SPECS)
def test_the_order_of_threads_changes_no_bit(name):
    """Sums are made in a fixed order, so results are equal in every bit whatever the schedule."""
    case = make_case(name, Build("float32"))
    found = []
    for order in (0, 5):
        kept = {}
        run_on_cpu_keeping(case, order, kept)
        found.append(kept)
    assert all(found[0][k].tobytes() == found[1][k].tobytes() for k in case.expected)


def run_on_cpu_keeping(case, order, kept):
    """Run the launches of a case on copies of its buffers, and keep those."""
    kept.update({k: None if v is None else np.array(v) for k, v in case.buffers.items()})
    for launch in case.launches:
        args = [kept[a] if isinstance(a, str) else a for a in launch.args]
        all_kernels(case.build).launch(launch.kernel, launch.grid, launch.block, args, seed=order)


def test_a_wrong_number_is_noticed():
    """The comparison itself: the largest element off by two units in the last place, one input changed."""
    case = make_case("swiglu", Build())
    out = case.expected["out"]
    at = np.unravel_index(np.abs(out).argmax(), out.shape)
    out[at] *= 1 + 2.0**-9
    assert [o.index for o in run_on_cpu(case)[0] if not o.fine] == [at]
    case = make_case("rms_norm", Build())
    del case.expected["stream"]
    assert "it was changed" in str(run_on_cpu(case)[0])

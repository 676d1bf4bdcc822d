"""The bank of planted faults: each is found, by wrong numbers, by a fault, or by two orders of threads that differ."""

import pytest

from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.apps.testing.kernel_mutants import caught, complaints, mutants
from minifer.apps.testing.kernel_sources import Build, kernel_files
from minifer.apps.testing.kernel_specs import SPECS

pytestmark = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))

FILES, BANK = kernel_files(), mutants()
QUICK = ("block_sum_first_barrier", "rope_writes_padding", "decode_misses_itself", "swiglu_one_too_many")


@pytest.mark.parametrize("name", QUICK)
def test_a_few_faults_are_found(name):
    """The rest takes two minutes: `--slow`."""
    assert caught(BANK[name], FILES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BANK if name not in QUICK])
def test_every_fault_is_found(name):
    """One compilation each."""
    assert caught(BANK[name], FILES)


@pytest.mark.parametrize("name", BANK)
def test_every_fault_fits(name):
    """The text that a fault replaces is there once; the kernels that have to notice exist; there is a hint."""
    mutant = BANK[name]
    assert mutant.apply(FILES)[mutant.file] != FILES[mutant.file]
    assert mutant.tasks
    assert set(mutant.tasks) <= set(SPECS)
    assert 20 < len(mutant.hint) < 200


def test_the_bank_is_large_and_covers_every_file():
    """At least 25, and a fault in every file."""
    assert len(BANK) >= 25
    assert {mutant.file for mutant in BANK.values()} == set(FILES)


def test_a_kernel_without_a_fault_is_not_complained_about():
    """Or everything would be caught."""
    assert not list(complaints("rms_norm", Build(), FILES))


@pytest.mark.slow
def test_some_faults_need_a_shuffled_order():
    """In the natural order this kernel is right without its barrier: that is why there are several."""
    changed = BANK["prefill_overwrites_a_tile"].apply(FILES)
    assert list(complaints("flash_prefill", Build(), changed))
    old = "    weights[threadIdx.x] = mine;\n    __syncthreads();\n    if (threadIdx.x == 0) {"
    source = FILES["sample_advance.cu"]
    start = source.index(old) + len(old)
    barrier = source.index("__syncthreads();", start)  # between writing the owner and reading it
    silent = {**FILES, "sample_advance.cu": source[:barrier] + source[barrier + len("__syncthreads();") :]}
    assert not list(complaints("sample_advance", Build(), silent, seeds=(0,), quick=True))
    assert list(complaints("sample_advance", Build(), silent, seeds=(1, 2, 3), quick=True))

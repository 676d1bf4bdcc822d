"""What is written once for NumPy and CuPy uses only names that both have.

The table of CuPy's names is committed (`tests/make/cupy_names.py` makes it), so this runs without a GPU and without
CuPy. It does not show that a function *behaves* alike; that takes a GPU, and the tests marked `gpu`.
"""

import ast

import house
import numpy as np
import pytest

#: The files whose functions take their array module from their arguments.
SHARED = ("ops/reference.py", "model/transformer.py", "kv_cache/store.py")
CUPY = set((house.ROOT / "tests" / "data" / "cupy_names.txt").read_text(encoding="utf-8").splitlines()[1:])
ARRAY_MEMBERS = {name for name in dir(np.ndarray) if not name.startswith("_")}


def array_names(source: str) -> set[str]:
    """The array library's names in a source: `sqrt` for `xp.sqrt`, `np.sqrt` or `array_module(x).sqrt`, and
    `ndarray.astype` for `x.astype`, whatever `x` is."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.func if isinstance(node.value, ast.Call) else node.value
        name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if name in ("xp", "np", "array_module"):
            found.add(node.attr)
        elif node.attr in ARRAY_MEMBERS:
            found.add(f"ndarray.{node.attr}")
    return found


@pytest.mark.parametrize("name", SHARED)
def test_only_names_that_cupy_has(name):
    """Everything asked of an array or its module exists in CuPy."""
    source = (house.PACKAGE / name).read_text(encoding="utf-8")
    assert array_names(source) <= CUPY


def test_the_check_sees_every_form():
    """`xp.`, `self.xp.`, the module of an argument, and methods of arrays."""
    source = "xp.exp(a)\nself.xp.einsum\narray_module(x).sqrt(y)\nq.setfield().astype(np.float16)"
    assert array_names(source) == {"exp", "einsum", "sqrt", "float16", "ndarray.astype", "ndarray.setfield"}
    assert "ndarray.setfield" not in CUPY, "a method that only NumPy's arrays have"


def test_the_table_is_whole():
    """A truncated table would fail everything; an empty one must not pass."""
    assert {"exp", "matmul", "ndarray.astype", "float32"} <= CUPY
    assert len(CUPY) > 400

"""What is written for CuPy uses only names and keywords that CuPy 13 and CuPy 14 both have.

The tables are committed (`tests/make/cupy_names.py` makes them from both versions), so this runs without a GPU and
without CuPy. It does not show that a function *behaves* alike; that takes a GPU, and the tests marked `gpu`.
"""

import ast

import house
import numpy as np
import pytest

#: The files whose functions take their array module from their arguments: `np.` there may be CuPy.
SHARED = ("ops/reference.py", "model/transformer.py", "kv_cache/store.py")

#: The files that speak to CuPy itself: `np.` there is NumPy.
FOR_CUPY = (
    "device.py", "roofline/cuda.py", "ops/cuda*.py", "apps/bench_gpu*.py", "apps/testing/kernel_run.py",
    "apps/testing/gpu_record.py",
)  # fmt: skip
FILES = SHARED + tuple(
    sorted(p.relative_to(house.PACKAGE).as_posix() for g in FOR_CUPY for p in house.PACKAGE.glob(g))
)  # fmt: skip

DATA = house.PACKAGE / "apps" / "testing"  # there, since the strict stand-in for CuPy reads them too
CUPY = set((DATA / "cupy_names.txt").read_text(encoding="utf-8").splitlines()[1:])
KEYWORDS = {
    name: set(words)
    for name, *words in (
        line.split() for line in (DATA / "cupy_keywords.txt").read_text(encoding="utf-8").splitlines()[1:]
    )
}  # fmt: skip
ARRAY_MEMBERS = {name for name in dir(np.ndarray) if not name.startswith("_")}
ELSEWHERE = ("cuda.cublas",)  # only there where NVIDIA's library is, and so in no table


def dotted(node: ast.AST, roots: tuple[str, ...]) -> str | None:
    """`cuda.Stream` for `xp.cuda.Stream`, `self.xp.cuda.Stream` or `array_module(x).cuda.Stream`; else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        if node.attr in roots and isinstance(node.value, ast.Name | ast.Attribute):
            return ".".join(reversed(parts))
        parts.append(node.attr)
        node = node.value
    node = node.func if isinstance(node, ast.Call) else node
    is_root = isinstance(node, ast.Name) and node.id in roots
    return ".".join(reversed(parts)) if is_root and parts else None


def uses(source: str, *, shared: bool) -> dict[str, set[str]]:
    """The array library's names in a source with the keywords given to them: `sqrt`, `cuda.Stream`, and
    `ndarray.astype` for `x.astype`, whatever `x` is."""
    roots = ("xp", "_xp", "cupy", "cp", "array_module") + (("np",) if shared else ())
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        at = node.func if isinstance(node, ast.Call) else node
        if not isinstance(at, ast.Attribute):
            continue
        name = dotted(at, roots)
        if name is None and at.attr in ARRAY_MEMBERS and shared:
            name = f"ndarray.{at.attr}"
        if name:
            keywords = [k.arg for k in node.keywords if k.arg] if isinstance(node, ast.Call) else []
            found.setdefault(name, set()).update(keywords)
    return found


@pytest.mark.parametrize("name", FILES)
def test_only_names_that_cupy_has(name):
    """Everything asked of CuPy, or of an array that may be CuPy's, exists in both versions."""
    source = (house.PACKAGE / name).read_text(encoding="utf-8")
    found = uses(source, shared=name in SHARED)
    assert {n for n in found if not n.startswith(ELSEWHERE)} <= CUPY


@pytest.mark.parametrize("name", FILES)
def test_only_keywords_that_cupy_knows(name):
    """A keyword that only NumPy has (`where=`, `initial=`) would be found out on the first GPU."""
    source = (house.PACKAGE / name).read_text(encoding="utf-8")
    unknown = {n: words - KEYWORDS[n] for n, words in uses(source, shared=name in SHARED).items() if n in KEYWORDS}
    assert not {n: words for n, words in unknown.items() if words}


def test_the_check_sees_every_form():
    """`xp.`, `self.xp.`, the module of an argument, and methods of arrays."""
    source = "xp.exp(a)\nself.xp.einsum\narray_module(x).sqrt(y, out=y)\nq.setfield().astype(np.float16)"
    names = {"exp", "einsum", "sqrt", "float16", "ndarray.astype", "ndarray.setfield"}
    assert set(uses(source, shared=True)) == names
    assert uses(source, shared=True)["sqrt"] == {"out"}
    assert "ndarray.setfield" not in CUPY, "a method that only NumPy's arrays have"
    assert uses("self.device.xp.cuda.Stream(non_blocking=True)\nnp.exp(x, where=m)", shared=False) == {
        "cuda.Stream": {"non_blocking"},
        "cuda": set(),
    }
    assert "where" not in KEYWORDS["exp"], "a keyword that only NumPy's functions have"


def test_the_tables_are_whole():
    """A truncated table would fail everything; an empty one must not pass."""
    assert {"exp", "matmul", "ndarray.astype", "float32", "cuda.Stream.begin_capture"} <= CUPY
    assert len(CUPY) > 900
    assert len(KEYWORDS) > 500
    assert {"axis", "keepdims"} <= KEYWORDS["ndarray.sum"]

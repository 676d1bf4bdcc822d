"""Write `tests/data/cupy_names.txt`: every public name of CuPy, and of its array type, one a line.

`ops/reference.py` must run unchanged on a GPU, but the machine that tests it rarely has one. CuPy can be imported
without a driver, though, and then names can be compared. Made with CuPy 14.2.0:

    python -m venv env && env/bin/pip install cupy-cuda13x && env/bin/python tests/make/cupy_names.py
"""

from pathlib import Path

import cupy

TABLE = Path(__file__).resolve().parent.parent / "data" / "cupy_names.txt"


def names() -> list[str]:
    """`add`, `float32` ... of the module, and `ndarray.astype` ... of its arrays, sorted."""
    of_module = [n for n in dir(cupy) if not n.startswith("_")]
    of_arrays = [f"ndarray.{n}" for n in dir(cupy.ndarray) if not n.startswith("_")]
    return sorted(of_module + of_arrays)


if __name__ == "__main__":
    header = f"# Public names of CuPy {cupy.__version__} and of cupy.ndarray, made by tests/make/cupy_names.py"
    TABLE.write_text("\n".join([header, *names()]) + "\n", encoding="utf-8")

"""Write `cupy_names.txt` and `cupy_keywords.txt` of `minifer/apps/testing/`: what CuPy 13 and CuPy 14 both have.

Code for a GPU is tested on machines that rarely have one. CuPy can be imported without a driver, though, and then names
and parameters can be compared. Each version is asked in an environment of its own, then the answers are merged:

    for version in 13.6.0 14.2.0; do
        python -m venv env-$version && env-$version/bin/pip install cupy-cuda13x==$version
        env-$version/bin/python tests/make/cupy_names.py ask $version.json
    done
    python tests/make/cupy_names.py merge 13.6.0.json 14.2.0.json

Names are dotted below the module: `exp`, `ndarray.astype`, `cuda.Stream.begin_capture`, `cuda.runtime.memGetInfo`.
A line of `cupy_keywords.txt` is a name and the parameters that may be given by name.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "minifer" / "apps" / "testing"
CLASSES = ("ndarray", "RawModule", "RawKernel", "cuda.Stream", "cuda.Event", "cuda.Graph", "cuda.Device",
           "cuda.MemoryPool", "cuda.PinnedMemoryPool", "cuda.MemoryPointer", "cuda.Function")  # fmt: skip
MODULES = ("", "cuda", "cuda.runtime", "random")  # cuda.cublas needs NVIDIA's library, which is not there


def ask() -> dict[str, list[str] | None]:
    """Every public name of the installed CuPy, with its parameters where they can be found out."""
    import cupy

    found: dict[str, list[str] | None] = {}
    for place in (*MODULES, *CLASSES):
        owner = resolve(cupy, place)
        if owner is None:
            continue
        for name in dir(owner):
            if not name.startswith("_"):
                dotted = f"{place}.{name}" if place else name
                found[dotted] = parameters(resolve(owner, name))
    return found


def resolve(module: Any, dotted: str) -> Any:
    """What a dotted name stands for, or None."""
    try:
        for part in dotted.split(".") if dotted else ():
            module = getattr(module, part, None)
    except ImportError:  # a library that is loaded when it is first asked for
        return None
    return module


def parameters(thing: Any) -> list[str] | None:
    """Names of the parameters: from the signature, or from the first line of the docstring, where Cython puts it. None
    where they are not known."""
    if not callable(thing):
        return None
    try:
        all_of_them = [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]
        if any(p.kind == p.VAR_KEYWORD for p in all_of_them):
            return None
        return sorted(p.name for p in all_of_them if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    except (TypeError, ValueError):
        pass
    first = re.match(r"\s*[\w.]+\((.*?)\)(?: ->|\s*$)", (getattr(thing, "__doc__", "") or "").split("\n")[0])
    return sorted(from_words(first[1])) if first and "*kwargs" not in first[1] else None


def from_words(words: str) -> Iterator[str]:
    """`self, tuple axis=None, \\*, out=None` -> axis, out. Those before a `/` cannot be given by name."""
    parts = [part.split("=")[0].split(":")[0].strip() for part in words.split(",")]
    for part in parts[parts.index("/") + 1 :] if "/" in parts else parts:
        name = part.split()[-1] if part.split() else ""
        if name.isidentifier() and name != "self":
            yield name


def merge(paths: list[str]) -> None:
    """Write both tables from the answers of all versions."""
    answers = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    versions = " and ".join(answer.pop("__version__") for answer in answers)
    names = sorted(set.intersection(*(set(answer) for answer in answers)))
    known = [n for n in names if all(answer[n] is not None for answer in answers)]
    made = "made by tests/make/cupy_names.py"
    write("cupy_names.txt", f"# Public names that CuPy {versions} have, {made}", names)
    rows = [" ".join([n, *sorted(set.intersection(*(set(answer[n]) for answer in answers)))]) for n in known]
    write("cupy_keywords.txt", f"# Names, and the parameters that CuPy {versions} know by name, {made}", rows)


def write(name: str, header: str, lines: list[str]) -> None:
    """One table."""
    (DATA / name).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        import cupy

        Path(sys.argv[2]).write_text(json.dumps({"__version__": cupy.__version__, **ask()}), encoding="utf-8")
    else:
        merge(sys.argv[2:])

"""Build the notebooks: `notebooks/src/NN_name.py` (percent format) -> `notebooks/NN_name.ipynb`, executed.

    python notebooks/build.py                   # all of them, with SmolLM2
    python notebooks/build.py 01 05             # some of them
    python notebooks/build.py 01 --model tiny   # a rehearsal: executed, and nothing is written (but see --to)
    python notebooks/build.py --check           # nothing is executed: do the notebooks still hold what src says?

The source is what people edit and review; the notebook is what they read, with real numbers in it. A notebook is
written only when every cell ran, and everything but the measured outputs is the same in each build: cell ids are their
numbers, and no time stamps, versions of editors or machine paths are kept.

Needs the extra `notebooks` (jupytext, nbclient, ipykernel), except for `--check`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODEL_VARIABLE = "MINIFER_NOTEBOOK_MODEL"
DEFAULT_MODEL = "smollm2-135m"
MOST_BYTES = 400_000
CELL_LIMIT_S = 300  # a cell that takes longer hangs; the notebooks promise a minute in all on a quiet machine

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
USAGE = "import psutil as _p; _m = _p.Process().memory_info(); print(getattr(_m, 'peak_wset', 0) or _m.rss)"
PEAK = "import resource as _r; print(_r.getrusage(_r.RUSAGE_SELF).ru_maxrss)"


@dataclass(frozen=True)
class Cell:
    """One cell of a source: `kind` is `markdown` or `code`."""

    kind: str
    text: str


def read_source(path: Path) -> list[Cell]:
    """The cells of a percent-format file, read without jupytext: `# %%` and `# %% [markdown]` are all that is used."""
    cells: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            cells.append(("markdown" if "[markdown]" in line else "code", []))
        elif cells:
            kind, lines = cells[-1]
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)
    return [Cell(kind, "\n".join(lines).strip("\n")) for kind, lines in cells]


def read_notebook(path: Path) -> list[Cell]:
    """The inputs of a notebook file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def drift(source: Path) -> str:
    """How the notebook differs from its source, in a sentence; empty if it does not."""
    target = target_of(source)
    if not target.is_file():
        return f"{target.name} has not been built"
    wanted, found = read_source(source), read_notebook(target)
    for number, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if a != b:
            return f"{target.name}: cell {number} differs from its source"
    return "" if len(wanted) == len(found) else f"{target.name} has {len(found)} cells, its source {len(wanted)}"


def sources(numbers: list[str]) -> list[Path]:
    """The sources with these numbers, all if there are none, in order. Exits for a number that has no source."""
    every = sorted((HERE / "src").glob("[0-9][0-9]_*.py"))
    missing = [n for n in numbers if not any(path.name.startswith(n) for path in every)]
    if missing:
        sys.exit(f"build.py: no source for {', '.join(missing)}; there are {', '.join(path.stem for path in every)}")
    return [path for path in every if not numbers or path.name[:2] in numbers]


def target_of(source: Path) -> Path:
    """Where the notebook of a source belongs."""
    return HERE / f"{source.stem}.ipynb"


def execute(source: Path, model: str) -> tuple[Any, float, int]:
    """Run a source in a fresh kernel; the notebook, its seconds, and the peak memory of the kernel in bytes.

    Raises nbclient's CellExecutionError with the traceback of the cell that failed.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    cells = len(notebook.cells)
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK if os.name == "posix" else USAGE))  # not kept
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {MODEL_VARIABLE: model, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(HERE)}},
    )
    start = time.perf_counter()
    client.execute(env=env)
    seconds = time.perf_counter() - start
    peak = int(notebook.cells.pop().outputs[0].text) * (1024 if sys.platform == "linux" else 1)
    assert len(notebook.cells) == cells
    return tidy(notebook), seconds, peak


def tidy(notebook: Any) -> Any:
    """Keep what the next build would write too: numbered ids, plain metadata, outputs."""
    notebook.metadata = METADATA
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata = {}
    return notebook


def write(notebook: Any, target: Path) -> int:
    """Write a notebook in one step, if it is small enough; its size in bytes."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    size = len(text.encode())
    if size > MOST_BYTES:
        sys.exit(f"build.py: {target.name} would have {size:,} bytes, more than {MOST_BYTES:,}: make figures smaller")
    draft = target.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8", newline="\n")
    os.replace(draft, target)
    return size


def build(paths: list[Path], model: str, folder: Path | None) -> Iterator[str]:
    """Execute each source and write its notebook to `folder`, if there is one; a line on each."""
    for source in paths:
        notebook, seconds, peak = execute(source, model)
        line = f"{source.stem}: {seconds:.1f} s, {peak / 1e9:.2f} GB with {model}"
        if folder is not None:
            line += f", {write(notebook, folder / target_of(source).name):,} bytes written"
        yield line


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources.")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="which (all by default)")
    parser.add_argument("--model", default=os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL, help="smollm2-135m writes")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write there instead; for any model")
    parser.add_argument("--check", action="store_true", help="only compare the notebooks with their sources")
    args = parser.parse_args()
    paths = sources(args.numbers)
    if args.check:
        found = [sentence for path in paths if (sentence := drift(path))]
        print("\n".join(found) or f"{len(paths)} notebooks hold what their sources say")
        return bool(found)
    folder = args.to or (HERE if args.model == DEFAULT_MODEL else None)
    for line in build(paths, args.model, folder):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

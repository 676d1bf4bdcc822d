"""Build the notebooks: `notebooks/src/NN_name.py` (percent format) -> `notebooks/NN_name.ipynb`, executed.

    python notebooks/build.py                   # all of them, with SmolLM2
    python notebooks/build.py 01 05             # some of them
    python notebooks/build.py 01 --model tiny   # a rehearsal: executed, and nothing is written (but see --to)
    python notebooks/build.py --table           # as the first, and what was measured goes into INSTRUCTOR.md
    python notebooks/build.py --check           # nothing is executed: do the notebooks still hold what src says?

The source is what people edit and review; the notebook is what they read, with real numbers in it. A notebook is
written only when every cell ran, and everything but the measured outputs is the same in each build: cell ids are their
numbers, and no time stamps, versions of editors or machine paths are kept.

Once pyproject.toml names the repository's address (`[project.urls]`, `Repository`), each notebook gets a Colab badge,
and its first code cell fetches a clone where there is none. Until then there is nothing a badge could lead to.

Needs the extra `notebooks` (jupytext, nbclient, ipykernel), except for `--check`.
"""

import argparse
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TABLE = HERE / "INSTRUCTOR.md"
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


BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"

FIRST_CELL = """\
# Where minifer is installed, this cell does nothing. In a bare environment it installs it from the clone this notebook
# lies in; on Colab it fetches a clone first, so that check() finds its tests.
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("minifer") is None:
    clone = Path("..").resolve()
    if not (clone / "pyproject.toml").is_file():
        clone = Path("minifer-clone").resolve()
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{repository}", str(clone)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--editable", str(clone), "pytest", "hypothesis"], check=True)
    sys.path.insert(0, str(clone))"""


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


def repository() -> str:
    """The address of the repository, without a slash at its end; empty while pyproject.toml does not know it."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    return str(urls.get("Repository", "")).rstrip("/").removesuffix(".git")


def cells_of(source: Path) -> list[Cell]:
    """What the notebook of a source holds: its cells, with a badge and a first cell for Colab if we have an address."""
    cells, address = read_source(source), repository()
    if not address.startswith("https://github.com/"):  # Colab opens what lies there
        return cells
    path = f"/blob/main/notebooks/{target_of(source).name}"
    badge = BADGE.format(
        address=address.replace("https://github.com/", "https://colab.research.google.com/github/") + path
    )
    cells[0] = Cell("markdown", f"{badge}\n\n{cells[0].text}")
    first = next(number for number, cell in enumerate(cells) if cell.kind == "code")
    cells[first] = Cell("code", FIRST_CELL.format(repository=address))
    return cells


def read_notebook(path: Path) -> list[Cell]:
    """The inputs of a notebook file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def drift(source: Path) -> str:
    """How the notebook differs from its source, in a sentence; empty if it does not."""
    target = target_of(source)
    if not target.is_file():
        return f"{target.name} has not been built"
    wanted, found = cells_of(source), read_notebook(target)
    for number, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if a != b:
            return f"{target.name}: cell {number} differs from its source"
    return "" if len(wanted) == len(found) else f"{target.name} has {len(found)} cells, its source {len(wanted)}"


def sources(numbers: list[str]) -> list[Path]:
    """The sources with these numbers or names, all if there are none, in order. Exits for one that has no source."""
    every = sorted((HERE / "src").glob("[0-9][0-9]_*.py"))
    missing = [n for n in numbers if not any(n in (path.name[:2], path.stem) for path in every)]
    if missing:
        sys.exit(f"build.py: no source for {', '.join(missing)}; there are {', '.join(path.stem for path in every)}")
    return [path for path in every if not numbers or {path.name[:2], path.stem} & set(numbers)]


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
    for cell, wanted in zip(notebook.cells, cells_of(source), strict=True):
        cell.source = wanted.text
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


def with_measured(table: str, number: str, seconds: float, peak: int) -> str:
    """A page with the third and fourth column of a notebook's row replaced by what was measured.

    >>> with_measured("| 03 A forward pass | 75 | 60 s | 1.5 GB | no | 3.1 |", "03", 21.6, 1_234_000_000)
    '| 03 A forward pass | 75 | 22 s | 1.2 GB | no | 3.1 |'
    """
    row = re.compile(rf"^(\| {number} [^|\s][^|]*\|[^|]*\|)[^|]*\|[^|]*\|", re.MULTILINE)
    if len(row.findall(table)) != 1:
        sys.exit(
            f"build.py: {TABLE.name} has no row for notebook {number}: add one, `| {number} title | minutes | ...`"
        )
    return row.sub(rf"\g<1> {seconds:.0f} s | {peak / 1e9:.1f} GB |", table)


def build(paths: list[Path], model: str, folder: Path | None, table: Path | None) -> Iterator[str]:
    """Execute each source, write its notebook to `folder` and its costs to `table`, if there are any; a line on each."""
    for source in paths:
        notebook, seconds, peak = execute(source, model)
        line = f"{source.stem}: {seconds:.1f} s, {peak / 1e9:.2f} GB with {model}"
        if folder is not None:
            line += f", {write(notebook, folder / target_of(source).name):,} bytes written"
        if table is not None:
            page = with_measured(table.read_text(encoding="utf-8"), source.name[:2], seconds, peak)
            table.write_text(page, encoding="utf-8", newline="\n")
        yield line


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the notebooks from their sources.")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="which (all by default)")
    parser.add_argument("--model", default=os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL, help="smollm2-135m writes")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write there instead; for any model")
    parser.add_argument("--table", action="store_true", help=f"also write seconds and memory into {TABLE.name}")
    parser.add_argument("--check", action="store_true", help="only compare the notebooks with their sources")
    args = parser.parse_args()
    paths = sources(args.numbers)
    if args.check:
        found = [sentence for path in paths if (sentence := drift(path))]
        print("\n".join(found) or f"{len(paths)} notebooks hold what their sources say")
        return bool(found)
    folder = args.to or (HERE if args.model == DEFAULT_MODEL else None)
    for line in build(paths, args.model, folder, TABLE if args.table else None):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

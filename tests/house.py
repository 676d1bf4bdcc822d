"""The rules of the house as data: layers, budgets, the short walk, and how a line of code is counted.

`test_layers.py`, `test_budget.py`, `test_style.py` and `test_delete.py` check them. This file is the one place where
the lists stand. Run as a script, it prints the budgets or, with `--readme`, writes them into the README.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minifer"

#: From the ground up. A module may import from its own entry and from entries to its left, never from its right.
#: `kv_cache` stands below `ops` because a room makes the store for its own arrays.
LAYERS = (
    ("overlay", "errors", "clock", "meter", "device", "limits", "formats", "hub"),
    ("tokenizer",),
    ("kv_cache",),
    ("ops",),
    ("model",),
    ("sampling_params", "sampling", "stop_strings"),
    ("generate", "incremental"),
    ("scheduler",),
    ("metrics",),
    ("trace",),
    ("executor",),
    ("engine",),
    ("llm",),
    ("roofline",),
    ("apps",),
)

#: These modules decide and never compute: importing NumPy in one of them is a mistake.
PURE_PYTHON = ("kv_cache/pool.py", "kv_cache/prefix.py", "scheduler", "metrics.py", "trace.py", "clock.py", "errors.py")

#: The rooms that are loaded on demand, and only by `ops/__init__.py`.
FAST_ROOMS = (
    "minifer.ops.cpu",
    "minifer.ops.ranks",
    "minifer.ops.cuda",
    "minifer.ops.cuda_decode",
    "minifer.ops.cuda_launch",
    "minifer.ops.cuda_memory",
)


@dataclass(frozen=True)
class Budget:
    """At most `lines` lines of code in all files under `paths` (relative to the package), `without` left out."""

    name: str
    lines: int
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()


BUDGETS = (
    Budget("transformer", 150, ("model/transformer.py",)),
    Budget("reference", 250, ("ops/reference.py",)),
    Budget("bpe", 200, ("tokenizer/bpe.py",)),
    Budget("continuous", 200, ("scheduler/continuous.py",)),
    Budget("pool + prefix", 250, ("kv_cache/pool.py", "kv_cache/prefix.py")),
    Budget("engine", 150, ("engine.py",)),
    Budget("sampling", 200, ("sampling.py",)),
    Budget("tokenizer/", 800, ("tokenizer",)),
    Budget("model/", 650, ("model",)),
    Budget("kv_cache/", 400, ("kv_cache",)),
    Budget("scheduler/", 450, ("scheduler",)),
    # Without what fetches and reads files, the instruments, and the labs' finder: none takes part in inference.
    Budget(
        "the whole core",
        3000,
        (".",),
        without=(
            "apps",
            "formats",
            "hub.py",
            "roofline",
            "data",
            "ops/cpu.py",
            "ops/ranks.py",
            "ops/cuda.py",
            "ops/cuda_decode.py",
            "ops/cuda_launch.py",
            "ops/cuda_memory.py",
            "__main__.py",
            "overlay.py",
        ),
    ),
    Budget("cpu room", 600, ("ops/cpu.py",)),
    Budget("its processes", 300, ("ops/ranks.py",)),
    Budget("cuda room", 600, ("ops/cuda.py", "ops/cuda_decode.py")),
    Budget("its launches and memory", 300, ("ops/cuda_launch.py", "ops/cuda_memory.py")),
)

#: Someone who reads only these, in this order, has understood inference.
SHORT_WALK = (
    "generate.py",
    "tokenizer/bpe.py",
    "ops/reference.py",
    "model/transformer.py",
    "kv_cache/store.py",
    "sampling.py",
    "scheduler/continuous.py",
    "engine.py",
    "metrics.py",
)
SHORT_WALK_LINES = 1400


def module_files(*paths: str, without: tuple[str, ...] = ()) -> list[Path]:
    """The Python files under the given paths of the package, sorted; a path that does not exist yields nothing."""
    left_out = [PACKAGE / path for path in without]
    found: set[Path] = set()
    for path in paths:
        start = PACKAGE / path
        found.update([start] if start.is_file() else start.rglob("*.py"))
    return sorted(f for f in found if not any(f == out or out in f.parents for out in left_out))


def core_files() -> list[Path]:
    """Every file of the package outside `apps/`: what the house rules are strictest about."""
    return module_files(".", without=("apps", "data", "__main__.py"))


def code_lines(source: str) -> int:
    """Count the lines that hold code: no blank lines, no comments, no docstrings (of modules, functions or fields).

    >>> code_lines('"A lecture."\\nx = 1  # a comment\\n\\n# another\\ny = (2,\\n     3)\\n')
    3
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def measure(budget: Budget) -> int:
    """How many lines of code a budget's files have now."""
    files = module_files(*budget.paths, without=budget.without)
    return sum(code_lines(f.read_text(encoding="utf-8")) for f in files)


def short_walk_lines() -> int:
    """All lines of the nine files, docstrings and comments included."""
    return sum(len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in SHORT_WALK)


def module_name(path: Path) -> str:
    """`minifer/ops/cpu.py` is `minifer.ops.cpu`, `minifer/ops/__init__.py` is `minifer.ops`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(line, module)` for whatever a file imports: at the top, in a function, or by its name.

    `from minifer import x` and `from . import x` are taken as `minifer.x`, relative imports are resolved, and a string
    that is exactly a module of ours (as lazy exports use) counts as an import of it. What stands under
    `if TYPE_CHECKING` is left out: it names a type for the reader and is never imported.
    """
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {id(inner) for node in ast.walk(tree) if _is_type_checking(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if _is_module(full) else base
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value):
            yield node.lineno, node.value


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _is_module(name: str) -> bool:
    if not name.startswith("minifer.") or not all(part.isidentifier() for part in name.split(".")):
        return False
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def budgets_in_words() -> str:
    """The one line of the README that quotes the budgets; `test_budget.py` holds it against the code."""
    parts = [f"{b.name} {measure(b):,} of {b.lines:,}" for b in BUDGETS if measure(b)]
    walk = f"The short walk: {short_walk_lines():,} of {SHORT_WALK_LINES:,}"
    return f"Lines of code, of the budget: {'; '.join(parts)}. {walk}."


def write_readme() -> None:
    """Put the current numbers into the README, between its two `budgets` comments."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- budgets -->\n")
    _, _, after = rest.partition("<!-- /budgets -->")
    readme.write_text(f"{before}<!-- budgets -->\n{budgets_in_words()}\n<!-- /budgets -->{after}", encoding="utf-8")


if __name__ == "__main__":
    if "--readme" in sys.argv:
        write_readme()
    sys.stdout.write(budgets_in_words() + "\n")

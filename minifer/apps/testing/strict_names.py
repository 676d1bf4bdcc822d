"""Which names CuPy has, and which arguments its functions take by name: two committed tables.

CuPy may not be installed here, and NumPy has hundreds of names and keywords that CuPy lacks. The tables are made by
`tests/make/cupy_names.py` from two real versions of CuPy, which can be imported without a GPU, and hold what both have.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent


@functools.cache
def names() -> frozenset[str]:
    """`exp`, `ndarray.astype`, `cuda.Stream` ..."""
    return frozenset(_lines("cupy_names.txt"))


@functools.cache
def keywords() -> dict[str, frozenset[str]]:
    """What may be given by name to each function of which that is known.

    >>> sorted(keywords()["zeros"])
    ['dtype', 'order', 'shape']
    """
    return {name: frozenset(words) for name, *words in map(str.split, _lines("cupy_keywords.txt"))}


def _lines(file: str) -> list[str]:
    return (FOLDER / file).read_text(encoding="utf-8").splitlines()[1:]


def check_name(name: str) -> None:
    """Raise AttributeError for what CuPy lacks."""
    if name not in names():
        raise AttributeError(f"CuPy has no {name}, though NumPy may have it")


def check_keywords(name: str, given: Iterable[str]) -> None:
    """Raise TypeError for an argument that CuPy's function does not take."""
    known = keywords().get(name)
    unknown = [keyword for keyword in given if known is not None and keyword not in known]
    if unknown:
        raise TypeError(f"CuPy's {name} has no argument {unknown[0]!r}: it takes {', '.join(sorted(known or ()))}")

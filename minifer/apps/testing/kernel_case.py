"""One trial of a kernel: its inputs, how it is launched, and what must be in every buffer afterwards.

A case is made fresh from a seed, in float64 rounded to the kernel's number type, so that the expectation is exact about
what the kernel was given. Everything that must come out is compared, and so is everything that must stay: outputs start
as NaN (of integers: a number that means nothing), and a NaN that stays where a number belongs is as wrong as a number
where padding was. Where a kernel may read or write nothing, `guarded` puts NaN around an array.

Tolerance: half a unit of the number type for the last rounding, and for float sums in whatever order 3e-5 of the
largest magnitude. `__expf` on a GPU is good to about 1e-6 for the arguments that occur here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minifer.apps.testing.kernel_sources import Build
from minifer.errors import InvariantError

EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Half a unit in the last place, relative."""

FLOAT_SUMS = 3e-5
UNSET = -77
GUARD_BYTES = 4096

Launcher = Callable[["Launch", Sequence[Any]], Any]


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: the names of buffers, in the order of the kernel's parameters, or plain numbers."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Any, ...]


@dataclass
class Case:
    """Buffers by name, the launches that work on them, and what they must hold in the end.

    `expected` is float64 (or integers, which must be equal); buffers that are not in it must not have changed, but for
    those in `scratch`. `anything` marks elements of a buffer that may hold whatever they like.
    """

    about: str
    build: Build
    launches: list[Launch]
    buffers: dict[str, Any]
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    scratch: frozenset[str] = frozenset()
    anything: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How far a buffer is off: the largest error, where, and whether it is within the tolerance."""

    buffer: str
    error: float
    allowed: float
    index: tuple[int, ...]
    fine: bool

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        verdict = "" if self.fine else "  WRONG"
        return f"{self.buffer}: largest error {self.error:.3g} at [{where}], allowed {self.allowed:.3g}{verdict}"


def encode(values: Any, dtype: str) -> np.ndarray:
    """Float64 values in a number type; bfloat16, which NumPy lacks, as the upper half of a float32 (uint16).

    >>> decode(encode(np.array([1.0, 3.14159]), "bfloat16")).tolist()
    [1.0, 3.140625]
    """
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, dtype)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, ties to even
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def decode(array: np.ndarray) -> np.ndarray:
    """The float64 values of an array that `encode` made; integers (but uint16) as they are."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def nothing(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An output before the kernel has run: NaN everywhere, or `UNSET` for integers."""
    if dtype.startswith("int"):
        return np.full(shape, UNSET, dtype)
    return encode(np.full(shape, np.nan), dtype)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy of the array in the midst of NaN (all bits set), so that a step past either end shows."""
    raw = np.full(array.nbytes + 2 * GUARD_BYTES + 64, 0xFF, np.uint8)
    start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % 64
    inner = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return inner


def unharmed(array: np.ndarray) -> np.ndarray:
    """The array that `guarded` made. Raises InvariantError if something was written beside it."""
    raw = array
    while raw.base is not None:
        raw = raw.base
    start = array.ctypes.data - raw.ctypes.data
    if not ((raw[:start] == 0xFF).all() and (raw[start + array.nbytes :] == 0xFF).all()):
        raise InvariantError("the kernel wrote beside an array")
    return array


def run(case: Case, launcher: Launcher, place: Callable[[np.ndarray], Any], fetch: Callable[[Any], np.ndarray]) -> Any:
    """Launch all of a case, and return `(outcomes, what the launcher returned)`.

    `place` puts a buffer where the kernel can reach it, `fetch` gets it back: with NumPy or with CuPy.
    """
    there = {name: None if array is None else place(array) for name, array in case.buffers.items()}
    reports = []
    for launch in case.launches:
        args = [there[a] if isinstance(a, str) else a for a in launch.args]
        reports.append(launcher(launch, args))
    found = {name: fetch(array) for name, array in there.items() if array is not None}
    return check(case, found), reports


def check(case: Case, found: Mapping[str, np.ndarray]) -> list[Outcome]:
    """Compare every buffer with what it must hold."""
    outcomes = []
    for name, before in case.buffers.items():
        if before is None or name in case.scratch:
            continue
        if name in case.expected:
            free = case.anything.get(name)
            got = found[name] if free is None else np.where(free, before, found[name])
            want = case.expected[name] if free is None else np.where(free, decode(before), case.expected[name])
            outcomes.append(_compare(name, got, want, case.build.dtype))
        elif found[name].tobytes() != before.tobytes():
            outcomes.append(Outcome(f"{name} (an input, and it was changed)", np.inf, 0.0, (), fine=False))
    return outcomes


def _compare(name: str, found: np.ndarray, expected: np.ndarray, dtype: str) -> Outcome:
    got = decode(found)
    exact = got.dtype.kind != "f"
    want = expected if exact else expected.astype(np.float64)
    stands_for_infinity = np.abs(want) >= 1e29
    size = np.abs(want[np.isfinite(want) & ~stands_for_infinity]).max(initial=0.0)
    is_act = found.dtype == np.uint16 or found.dtype.name == dtype
    relative = np.where(stands_for_infinity, 1e-6, EPSILON[dtype] if is_act else 0.0)
    allowed = np.zeros(want.shape) if exact else FLOAT_SUMS * size + relative * np.abs(want)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want)
    error = np.where(np.isnan(got) & np.isnan(want) | (got == want), 0.0, np.where(np.isnan(error), np.inf, error))
    excess = error - np.where(np.isnan(allowed), 0.0, allowed * 1.001)
    fine = bool((excess <= 0).all())
    at = np.unravel_index(int(np.argmax(error if fine else excess)), excess.shape) if excess.size else ()
    index = tuple(int(i) for i in at)
    return Outcome(name, float(error[at]), float(np.nan_to_num(allowed[at])), index, fine=fine)

"""The arrays of the strict stand-in: NumPy inside, CuPy's rules outside.

Refused: host arrays as operands or indices, implicit conversion to NumPy, indices out of range (CuPy wraps around) and
twice in an assignment (undefined on a GPU), methods and keywords that CuPy lacks, products of 16-bit arrays with three
dimensions (CuPy makes float32 copies). Counted: launches, allocations, waiting.
"""

# ruff: noqa: ARG002  parameters are CuPy's, and some mean nothing here

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from minifer.apps.testing.strict_machine import StrictError, machine, unwrapped
from minifer.apps.testing.strict_names import check_keywords, check_name


class StrictArray:
    """Stands for `cupy.ndarray`."""

    __array_ufunc__ = None  # NumPy's functions and operators refuse it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray) -> None:
        """Only the stand-in itself makes these: `array` becomes its memory."""
        self._on_device = array

    def __array__(self, *_: Any, **__: Any) -> None:
        raise TypeError("implicit conversion to a NumPy array: use .get() or Device.to_host")

    # --- what costs nothing -------------------------------------------------------------------------------------------

    shape = property(lambda self: self._on_device.shape)
    dtype = property(lambda self: self._on_device.dtype)
    ndim = property(lambda self: self._on_device.ndim)
    size = property(lambda self: self._on_device.size)
    nbytes = property(lambda self: self._on_device.nbytes)
    itemsize = property(lambda self: self._on_device.itemsize)
    strides = property(lambda self: self._on_device.strides)
    flags = property(lambda self: _Flags(self._on_device))
    T = property(lambda self: StrictArray(self._on_device.T))

    def __len__(self) -> int:
        return len(self._on_device)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def transpose(self, *axes: Any) -> "StrictArray":
        """A view."""
        return StrictArray(self._on_device.transpose(*axes))

    def view(self, dtype: Any) -> "StrictArray":
        """A view as another type."""
        return StrictArray(self._on_device.view(dtype))

    def reshape(self, *shape: Any) -> "StrictArray":
        """A view where possible, else a copy."""
        result = self._on_device.reshape(*shape)
        if result.size and not np.shares_memory(result, self._on_device):
            machine.compute("a reshape that has to copy")
        return StrictArray(result)

    # --- transfers ----------------------------------------------------------------------------------------------------

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        """To the host; without `blocking` in the background, into page-locked memory."""
        if not blocking:
            machine.defer(out, self._on_device.copy())
            return out
        machine.wait(".get()")
        if out is None:
            return self._on_device.copy(order="C" if order == "C" else "K")
        out[...] = self._on_device
        return out

    def set(self, array: Any, stream: Any = None) -> None:
        """From the host: the same type and shape, no conversion."""
        if type(array) is not np.ndarray or array.dtype != self.dtype or array.shape != self.shape:
            raise StrictError(f".set() of {self.dtype}{self.shape} needs such a NumPy array, not {_described(array)}")
        if not self._on_device.flags.c_contiguous:
            raise StrictError(".set() on a view with gaps")
        machine.upload(".set()", array, background=stream is not None)
        self._on_device[...] = array

    def item(self, *index: int) -> Any:
        """One number on the host."""
        machine.wait(".item()")
        return self._on_device.item(*index)

    def tolist(self) -> Any:
        """All numbers on the host."""
        machine.wait(".tolist()")
        return self._on_device.tolist()

    def __bool__(self) -> bool:
        machine.wait("bool()")
        return bool(self._on_device)

    def __int__(self) -> int:
        machine.wait("int()")
        return int(self._on_device)

    def __float__(self) -> float:
        machine.wait("float()")
        return float(self._on_device)

    def __index__(self) -> int:
        machine.wait("index()")
        return operator.index(self._on_device.item())

    def __repr__(self) -> str:
        machine.wait("repr()")
        return f"strict {self._on_device!r}"

    # --- indexing -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> "StrictArray":
        plain, arrays = self._index(key)
        result = self._on_device[plain]
        if arrays:
            machine.compute("indexing with an array")
        return StrictArray(np.asarray(result) if isinstance(result, np.generic) else result)

    def __setitem__(self, key: Any, value: Any) -> None:
        plain, arrays = self._index(key)
        whole = [array for array in arrays if array.dtype != bool]
        if whole:
            places = np.stack([array.ravel() for array in np.broadcast_arrays(*whole)])
            if np.unique(places, axis=1).shape[1] != places.shape[1]:
                raise StrictError("an index stands twice in an assignment: which value stays is undefined on a GPU")
        inner = unwrapped(value, "an assignment")
        machine.compute("an assignment", allocates=False)
        self._on_device[plain] = inner

    def _index(self, key: Any) -> tuple[Any, list[np.ndarray]]:
        """The key with NumPy arrays in it, and those arrays."""
        parts = key if isinstance(key, tuple) else (key,)
        axes_named = sum(part is not None and part is not Ellipsis for part in parts)
        axis, plain, arrays = 0, [], []
        for part in parts:
            if isinstance(part, (np.ndarray, list)):
                raise TypeError("an index on the host: an implicit copy to the device; use xp.asarray")
            if isinstance(part, StrictArray):
                inner = part._on_device
                self._check_index(inner, axis)
                arrays.append(inner)
                part = inner
            plain.append(part)
            axis += self.ndim - axes_named if part is Ellipsis else part is not None
        return tuple(plain), arrays

    def _check_index(self, index: np.ndarray, axis: int) -> None:
        if index.dtype == bool:
            machine.wait("a boolean mask")
        elif index.size and not -self.shape[axis] <= index.min() <= index.max() < self.shape[axis]:
            raise IndexError(
                f"an index between {index.min()} and {index.max()} into {self.shape[axis]}: CuPy would wrap around"
            )

    # --- operations ---------------------------------------------------------------------------------------------------

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        """Another type, in new memory unless it is the same one and `copy` is false."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        machine.compute("astype")
        return StrictArray(self._on_device.astype(dtype))

    def copy(self, order: str = "C") -> "StrictArray":
        """A copy."""
        machine.compute("copy")
        return StrictArray(self._on_device.copy(order="C"))

    def fill(self, value: Any) -> None:
        """All elements to one number."""
        machine.compute("fill", allocates=False)
        self._on_device.fill(unwrapped(value, "fill"))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(np.ndarray, name, None)):
            raise AttributeError(f"arrays have no attribute {name!r}")
        check_name(f"ndarray.{name}")

        def method(*args: Any, **keywords: Any) -> Any:
            check_keywords(f"ndarray.{name}", keywords)
            machine.compute(name, product=name == "dot")
            inner = {key: unwrapped(value, name) for key, value in keywords.items()}
            return wrapped(getattr(self._on_device, name)(*[unwrapped(a, name) for a in args], **inner))

        return method


class _Flags:
    """What CuPy tells about an array's layout: less than NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.c_contiguous, self.f_contiguous = array.flags.c_contiguous, array.flags.f_contiguous
        self.owndata = array.flags.owndata


def wrapped(result: Any) -> Any:
    """Results stay on the device, single numbers too."""
    if isinstance(result, (np.ndarray, np.generic)):
        return StrictArray(np.asarray(result))
    return type(result)(wrapped(item) for item in result) if isinstance(result, (list, tuple)) else result


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A matrix product as cuBLAS does it: 16-bit numbers are added up in float32, and two dimensions are all."""
    if a.dtype.itemsize > 2:
        return a @ b
    if a.ndim != 2 or b.ndim != 2:
        raise StrictError(
            f"a product of 16-bit arrays {a.shape} and {b.shape}: CuPy takes cuBLAS for two dimensions only"
        )
    if a.dtype != b.dtype:
        raise StrictError(f"a product of {a.dtype} and {b.dtype}: CuPy would copy both")
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


def _described(array: Any) -> str:
    return f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else type(array).__name__


def _operator(name: str, *, reflected: bool = False) -> Callable[[StrictArray, Any], Any]:
    function = product if name == "matmul" else getattr(operator, name)

    def operate(self: StrictArray, other: Any) -> Any:
        if isinstance(other, np.ndarray) or not isinstance(other, (StrictArray, int, float, np.generic)):
            return NotImplemented
        machine.compute(name, product=name == "matmul")
        inner = unwrapped(other, name)
        return wrapped(function(inner, self._on_device) if reflected else function(self._on_device, inner))

    return operate


def _in_place(name: str) -> Callable[[StrictArray, Any], StrictArray]:
    def operate(self: StrictArray, other: Any) -> StrictArray:
        machine.compute(name, allocates=False)
        getattr(operator, name)(self._on_device, unwrapped(other, name))
        return self

    return operate


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "matmul",
):
    setattr(StrictArray, f"__{_name.strip('_')}__", _operator(_name))
    setattr(StrictArray, f"__r{_name.strip('_')}__", _operator(_name, reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(StrictArray, f"__{_name}__", _operator(_name))
for _name in ("iadd", "isub", "imul", "itruediv"):
    setattr(StrictArray, f"__{_name}__", _in_place(_name))


def _unary(name: str) -> Callable[[StrictArray], Any]:
    def operate(self: StrictArray) -> Any:
        machine.compute(name)
        return wrapped(getattr(operator, name)(self._on_device))

    return operate


for _name in ("neg", "abs", "invert", "pos"):
    setattr(StrictArray, f"__{_name}__", _unary(_name))

StrictArray.__module__ = "strict_cupy"  # so that `reference.array_module` finds the module that goes with an array

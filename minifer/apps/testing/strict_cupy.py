"""A strict stand-in for CuPy: the same code as on a GPU, run by NumPy on the CPU, and refused where a GPU would refuse
it, differ in silence, or wait in silence.

    device = select_device("strict")        # device.xp is the module made here
    machine.reset(); ...; machine.launches, machine.syncs, machine.allocations

It is slow, and a green run proves nothing about speed, races between blocks, or what cuBLAS rounds. A red one is a bug.

What it watches over: `strict_array.py` (operands, indices, names and keywords, products), `strict_cuda.py` (kernels and
their arguments, graphs, events), `strict_machine.py` (counts, what may happen while a graph is recorded). New memory is
poisoned, so that reading before writing gives NaN.
"""

# ruff: noqa: ARG002  parameters are CuPy's, and some mean nothing here

import sys
from types import ModuleType
from typing import Any

import numpy as np

from minifer.apps.testing.strict_array import StrictArray, product, wrapped
from minifer.apps.testing.strict_cuda import MemoryPool, RawModule, cuda
from minifer.apps.testing.strict_machine import machine, poison, unwrapped
from minifer.apps.testing.strict_names import check_keywords, check_name

PRODUCTS = ("matmul", "dot", "einsum", "tensordot", "inner", "outer", "vdot")


class StrictCupy(ModuleType):
    """Stands for the module `cupy`. What is not written out here is NumPy's function of that name, if CuPy has it."""

    ndarray, RawModule, cuda = StrictArray, RawModule, cuda

    def asarray(self, a: Any, dtype: Any = None, order: Any = None, blocking: bool = False) -> StrictArray:
        """To the device, if it is not there."""
        if isinstance(a, StrictArray):
            return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
        array = np.array(a, dtype=dtype, order="C")
        machine.take("asarray")
        machine.upload("asarray", array, background=False)
        return StrictArray(array)

    array = asarray

    def asnumpy(self, a: Any, stream: Any = None, order: str = "C") -> np.ndarray:
        """To the host."""
        return a.get() if isinstance(a, StrictArray) else np.asarray(a)

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> StrictArray:
        """New memory, poisoned."""
        machine.take("empty")
        return StrictArray(poison(np.empty(shape, dtype=dtype)))

    def empty_like(self, prototype: StrictArray, dtype: Any = None) -> StrictArray:
        """New memory of the same shape, poisoned."""
        return self.empty(prototype.shape, dtype or prototype.dtype)

    def matmul(self, x1: Any, x2: Any) -> Any:
        """A product by cuBLAS."""
        return x1 @ x2

    def get_array_module(self, *arrays: Any) -> Any:
        """This module if any of the arrays is on the device, else NumPy."""
        return self if any(isinstance(a, StrictArray) for a in arrays) else np

    def get_default_memory_pool(self) -> MemoryPool:
        """The pool of device memory."""
        return MemoryPool()

    def get_default_pinned_memory_pool(self) -> MemoryPool:
        """The pool of page-locked host memory."""
        return MemoryPool()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        check_name(name)
        thing = getattr(np, name)
        if not callable(thing) or isinstance(thing, type):
            return thing
        function = self._function(name, thing)
        setattr(self, name, function)
        return function

    @staticmethod
    def _function(name: str, numpy_function: Any) -> Any:
        """A function of NumPy's that takes and gives arrays of the device."""

        def call(*args: Any, **given: Any) -> Any:
            check_keywords(name, given)
            out = given.get("out")
            machine.compute(name, product=name in PRODUCTS, allocates=out is None)
            inner = {key: unwrapped(value, name) for key, value in given.items()}
            if name in ("dot",):
                return wrapped(product(*[unwrapped(a, name) for a in args]))
            result = numpy_function(*[unwrapped(a, name) for a in args], **inner)
            return out if out is not None else wrapped(result)

        return call


xp = StrictCupy("strict_cupy", __doc__)
sys.modules["strict_cupy"] = xp  # arrays name it as their module, and `reference.array_module` looks it up here

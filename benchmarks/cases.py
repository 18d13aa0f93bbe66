"""A case: one problem, its operands, exact or random, and the gate that a result must pass.

Variants compute a case: functions of it and its operands that return a call. Those of other
libraries are here, too. torch and cuBLASLt (nvmath) are compared on rows of one dtype, as they have
no other result without a conversion; nvmath.device takes two minutes to build a kernel for a shape.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from oracle import inputs
from provenance import REPOSITORY

import dxgemm
from dxgemm.errors import MissingPackageError, WrongResultError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, result_dtypes, step_flops

sys.path.append(str(REPOSITORY / "examples"))
SMOKE = simulator_enabled()
if SMOKE:
    xp: Any = np
else:
    import cupy as xp

CANARY_K = 2048  # up to here float32 sums of canary data are exact, beyond it those of `integers`
WRONG_INTEGER = -1  # sums of int8 canaries are positive
UNCHECKED = ("read", "cublas syrk")  # rivals that compute no whole product
TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-12}  # of a result's norm, by the bytes of a real number

Call = Callable[[], Any]
Operands = SimpleNamespace  # a, b and out, and what else a case has
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """One problem; `arrangement` says "row" or "col" of a, b and out.

    Its fields are columns of the results. `result_dtype` is that of out, where it is not the one
    that `gemm` would allocate.
    """

    dtype: str
    m: int
    n: int
    k: int
    arrangement: str = "row_row_row"
    batch: int = 1
    precision: str | None = None
    result_dtype: str | None = None

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        precision = "".join(f"-{name}" for name in (self.precision, self.result_dtype) if name)
        more = (getattr(self, one.name) for one in fields(self)[8:])
        names = [f"{each}".replace(" | ", "+") for each in more if each]
        size = f"{self.dtype}{precision}-{batch}{self.m}x{self.n}x{self.k}"
        return "-".join([size, self.arrangement, *names])

    def tiny(self) -> Any:
        """The same kind of case, for the simulator."""
        return replace(self, m=6, n=5, k=3, batch=min(self.batch, 2))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a, b and out."""
        batch = (self.batch,) if self.batch > 1 else ()
        matrices = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return [(*batch, *matrix) for matrix in matrices]

    @property
    def out_dtype(self) -> str:
        return self.result_dtype or result_dtypes(self.dtype)[0]

    @property
    def working_dtype(self) -> str:
        """Dtype in which values are drawn."""
        return "float64" if self.dtype in ("float64", "complex128") else "float32"

    @property
    def flops(self) -> int:
        return step_flops(self.dtype) * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        """Each operand read once, the result written once."""
        a, b, out = map(math.prod, self.shapes)
        return ITEM_SIZES[self.dtype] * (a + b) + ITEM_SIZES[self.out_dtype] * out

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """Operands of standard normal values, of all integers that int8 holds, or exact ones."""
        fills = self.exact_fills if is_exact else (normal, normal)
        *shapes, out_shape = self.shapes
        *orders, out_order = self.arrangement.split("_")
        a, b = (
            to_dtype(stored(self.draw(fill, rng, shape), order), self.dtype)
            for fill, shape, order in zip(fills, shapes, orders, strict=True)
        )
        out = stored(xp.zeros(out_shape, self.working_dtype), out_order)
        return Operands(a=a, b=b, out=to_dtype(out, self.out_dtype))

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        """Fills of a and b, of values whose products and sums are exact in any order.

        TF32 and half precision hold the small integers exactly, not those of the canary. Sums of
        int8 are always exact.
        """
        is_full = self.dtype in ("float32", "float64") and self.precision != "tf32"
        if self.dtype == "int8" or (is_full and self.k <= CANARY_K):
            return inputs.CANARIES[self.dtype]
        return inputs.integers, inputs.integers

    def draw(self, fill: Any, rng: Any, shape: tuple[int, ...]) -> Any:
        """Draw an array of values that are not yet rounded to the dtype of the case."""
        if self.dtype == "int8" and fill is normal:
            return inputs.random(rng, shape, "int8")
        real = fill(rng, shape, self.working_dtype)
        return real + 1j * fill(rng, shape, self.working_dtype) if self.is_complex else real

    @property
    def is_complex(self) -> bool:
        return self.dtype in COMPLEX_PARTS

    def expected(self, x: Operands) -> Any:
        """Product of exact operands."""
        return to_dtype(xp.matmul(widened(x.a), widened(x.b)), self.out_dtype)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        """Compute exact operands and return fields for the row of the call.

        Raises:
            WrongResultError: the result is wrong.
        """
        self.spoil(x.out)
        result = call()
        self.require(name in UNCHECKED or same(result, expected), name)
        return {}

    def spoil(self, array: Any) -> None:
        array[...] = WRONG_INTEGER if "int" in self.dtype else math.nan

    def require(self, is_right: Any, name: str) -> None:
        if not is_right:
            raise WrongResultError(f"{name} gives a wrong result for {self}")


def grid(kind: Any = Case, **axes: Iterable[Any]) -> list[Any]:
    """Cases of all combinations of the axes' values.

    A value of `size` is n, of a square, or m, n, k and perhaps a batch; one of `of` gives several
    fields by name. A string or a dictionary is the only value of its axis.
    """
    cases = []
    single = (str, dict)
    for values in product(*([v] if isinstance(v, single) else v for v in axes.values())):
        given: dict[str, Any] = {}
        for name, value in zip(axes, values):
            if name == "size":
                sizes = (value,) * 3 if isinstance(value, int) else value
                given |= dict(zip(("m", "n", "k", "batch"), sizes))
            else:
                given |= value if name == "of" else {name: value}
        cases.append(kind(**given))
    return cases


def normal(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    return rng.standard_normal(shape, dtype=dtype)


def uniform(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    return rng.random(shape, dtype=dtype)


def stored(matrix: Any, order: str) -> Any:
    """Copy a matrix, or each in a batch, in row- or column-major order."""
    if order == "row":
        return xp.ascontiguousarray(matrix)
    return xp.ascontiguousarray(matrix.swapaxes(-1, -2)).swapaxes(-1, -2)


def to_dtype(array: Any, dtype: str) -> Any:
    """The same values, rounded to nearest; bfloat16, which NumPy lacks, as a torch tensor."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    return torch().from_dlpack(array).to(torch().bfloat16)


def widened(array: Any) -> Any:
    """Convert an array to float64 or complex128, in CuPy or, in the simulator, in NumPy."""
    if type(array).__module__ == "torch":
        array = xp.from_dlpack(array if array.is_complex() else array.double())
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def same(found: Any, expected: Any) -> bool:
    """Tell whether all elements are equal; NaN equals itself."""
    return bool(((found == expected) | ((found != found) & (expected != expected))).all())


def agree(found: Any, expected: Any, dtype: str) -> bool:
    """Tell whether results of a dtype differ by rounding only."""
    error, limit = xp.linalg.norm(widened(found) - expected), xp.linalg.norm(expected)
    return bool(error <= TOLERANCE[ITEM_SIZES[COMPLEX_PARTS.get(dtype, dtype)]] * limit)


def own(implementation: Any = None, **options: Any) -> Callable[[Case, Operands], dxgemm.Plan]:
    """Variant: dxgemm's plan, by the automatic choice unless an implementation is named."""

    def make(case: Case, x: Operands) -> dxgemm.Plan:
        given = {"precision": case.precision, **options}
        return dxgemm.plan(x.a, x.b, out=x.out, implementation=implementation, **given)

    return make


def gpu_only() -> None:
    """Refuse what is not compared in the simulator."""
    if SMOKE:
        raise MissingPackageError("other libraries are compared on a GPU")


def torch() -> Any:
    gpu_only()
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(f"torch is not installed ({error})") from None
    return torch


def as_tensor(array: Any) -> Any:
    """View an array as a torch tensor of the same memory."""
    return array if isinstance(array, torch().Tensor) else torch().from_dlpack(array)


def torch_call(case: Case, x: Operands) -> Call:
    """torch.mm, or torch.bmm of a batch, into out."""
    first, second, target = map(as_tensor, (x.a, x.b, x.out))
    multiply = torch().bmm if first.ndim == 3 else torch().mm
    return returning(x.out, lambda: multiply(first, second, out=target))


def returning(out: Any, queue: Call) -> Call:
    """A call whose result is in `out`."""

    def call() -> Any:
        queue()
        return out

    return call


def nvmath_call(case: Case, x: Operands) -> Call:
    """`nvmath.linalg.advanced.Matmul`, planned; it allocates its result."""
    gpu_only()
    try:
        from nvmath.linalg.advanced import Matmul

        product = Matmul(x.a, x.b)
        product.plan()
        product.execute()
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise MissingPackageError(f"nvmath-python does not work here: {error}") from error
    execute: Call = product.execute
    return execute


def nvmath_device_call(case: Case, x: Operands) -> Call:
    """The pipeline of `nvmath.device.Matmul` as its tutorial writes it, into out."""
    gpu_only()
    try:
        from nvmath_pipeline import nvmath_pipeline

        return returning(x.out, nvmath_pipeline(x.a, x.b, x.out))
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise MissingPackageError(f"nvmath.device does not work here: {error}") from error

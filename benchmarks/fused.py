"""Cases with an epilogue of `chains.py`, and the same by other means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from cases import Call, Case, Operands, same, to_dtype, widened, xp
from chains import CHAINS, Chain
from oracle import inputs
from rivals import as_tensor, torch

import dxgemm
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
OWN_EPS, OWN_ABSOLUTE_EPS = 32, 8  # in the type of sums
OTHERS_EPS = 16  # relative and absolute, in the type of the result: some round after every step


@dataclass(frozen=True)
class FusedCase(Case):
    """A problem with an epilogue, one of `CHAINS`, whose arrays have the dtype of the result.

    Arrays of a complex product are complex, whatever the result is.
    """

    epilogue: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.epilogue.replace(' | ', '+')}"

    @property
    def chain(self) -> Chain:
        return CHAINS[self.epilogue]

    @property
    def out_dtype(self) -> str:
        is_real = self.is_complex and self.epilogue.endswith("squared_magnitude")
        return COMPLEX_PARTS[self.dtype] if is_real else super().out_dtype

    @property
    def array_dtype(self) -> str:
        return self.dtype if self.is_complex else self.out_dtype

    @property
    def sums_dtype(self) -> str:
        """Dtype that cuBLAS writes before another kernel reads it."""
        return "int32" if self.dtype == "int8" else self.array_dtype

    @property
    def array_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {"vector": (self.n,), "column": (self.m,)}
        return {name: shapes.get(name, (self.m, self.n)) for name in self.chain.operands}

    @property
    def bytes_moved(self) -> int:
        elements = sum(map(math.prod, self.array_shapes.values()))
        return super().bytes_moved + ITEM_SIZES[self.array_dtype] * elements

    @property
    def unit(self) -> float:
        """A power of two that brings sums of signs into the range of activations."""
        is_whole = self.dtype == "int8"
        return 1.0 if is_whole else 2.0 ** -round(math.log2(math.sqrt(self.k) * 2 / 3))

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        """Small integers times a unit; all sums are exact: at most k, or those of int8."""
        if self.dtype == "int8":
            return inputs.random, inputs.random
        return self.scaled(inputs.signs), inputs.signs

    def scaled(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        return lambda rng, shape, dtype: self.unit * fill(rng, shape, dtype)

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """a, b and out, the epilogue's arrays, and the array for the plain product."""
        x = super().operands(rng, is_exact)
        x.arrays = {}
        for name, shape in self.array_shapes.items():
            drawn = [
                self.scaled(inputs.integers)(rng, shape, self.working_dtype)
                if is_exact
                else rng.standard_normal(shape, dtype=self.working_dtype)
                for _ in range(1 + self.is_complex)
            ]
            array = drawn[0] + 1j * drawn[1] if self.is_complex else drawn[0]
            x.arrays[name] = to_dtype(array, self.array_dtype)
        is_out = self.sums_dtype == self.out_dtype
        x.sums = x.out if is_out else xp.empty(x.out.shape, self.sums_dtype)
        return x

    def expected(self, x: Operands) -> Any:
        """The sums, and the results, which are not rounded."""
        sums = xp.matmul(widened(x.a), widened(x.b))
        arrays = {name: widened(array) for name, array in x.arrays.items()}
        return sums, self.chain.on_arrays(sums, *as_columns(arrays).values())

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        sums, values = expected
        kept = [array for key, array in x.arrays.items() if key == "kept"]
        for array in (x.sums, x.out, *kept):
            self.spoil(array)
        result = call()
        is_plan = isinstance(call, dxgemm.Plan)
        if is_plan and call.explain().work.epilogue is None:
            is_right, kept = self.is_rounded(result, sums, self.sums_dtype), []
        elif self.chain.is_exact:
            is_right = self.is_rounded(result, values, self.out_dtype)
        else:
            eps, factors = EPS[self.working_dtype], (OWN_EPS, OWN_ABSOLUTE_EPS)
            if not is_plan or self.chain.is_fast:
                eps, factors = EPS[self.out_dtype], (OTHERS_EPS, OTHERS_EPS)
            relative = max(factors[0] * eps, EPS[self.out_dtype])
            allowed = relative * abs(values) + factors[1] * eps
            is_right = bool((abs(widened(result) - values) <= allowed).all())
        if not (is_right and all(self.is_rounded(a, sums, self.sums_dtype) for a in kept)):
            self.fail(name)
        return {}

    def is_rounded(self, found: Any, exact: Any, dtype: str) -> bool:
        return same(widened(found), widened(to_dtype(exact, dtype)))


def as_columns(arrays: dict[str, Any]) -> dict[str, Any]:
    """Columns as (m, 1), so that they are broadcast along the rows."""
    return {name: a[:, None] if name == "column" else a for name, a in arrays.items()}


def fused(implementation: Any = None) -> Callable[[FusedCase, Operands], dxgemm.Plan]:
    """Variant: the epilogue in the product's kernel."""

    def make(case: FusedCase, x: Operands) -> dxgemm.Plan:
        epilogue = case.chain.bind(*x.arrays.values())
        return dxgemm.plan(x.a, x.b, out=x.out, epilogue=epilogue, implementation=implementation)

    return make


def plain(implementation: Any = None) -> Callable[[FusedCase, Operands], dxgemm.Plan]:
    """Variant: the kernel of `fused(implementation)` without the epilogue."""
    return lambda case, x: product(case, x, own_choice(fused(implementation)(case, x)))


def product(case: FusedCase, x: Operands, implementation: Any = None) -> dxgemm.Plan:
    return dxgemm.plan(x.a, x.b, out=x.sums, implementation=implementation)


def own_choice(plan: dxgemm.Plan) -> tuple[str, Any]:
    """Value of `implementation=` for exactly the kernel of a plan."""
    candidate = plan.route.decision.candidate
    return candidate.implementation.name, candidate.config


def separate_kernels(case: FusedCase, x: Operands) -> Call:
    """cuBLAS, then one kernel that `cupy.fuse` makes of the chain."""
    plan = product(case, x, "cublas")
    arrays = as_columns(x.arrays).values()
    if case.is_complex:
        chain = fused_complex_kernel(case.epilogue)
        return lambda: chain(plan(), *arrays)
    arguments = [x.sums, *arrays, x.out]
    if case.out_dtype == "bfloat16":
        kernel = bfloat16_kernel(case.epilogue)
        arguments = [xp.from_dlpack(a.view(torch().int16)).view("uint16") for a in arguments]
    else:
        kernel = fused_kernel(case.epilogue, case.working_dtype)

    def call() -> object:
        plan()
        kernel(*arguments)
        return x.out

    return call


@cache
def fused_complex_kernel(epilogue: str) -> Any:
    return xp.fuse(kernel_name="chain")(CHAINS[epilogue].on_arrays)


@cache
def fused_kernel(epilogue: str, dtype: str) -> Any:
    """One kernel of (sums, arrays..., out), which computes in `dtype` as `gemm` does."""
    on_arrays = CHAINS[epilogue].on_arrays

    @xp.fuse
    def kernel(*arguments: Any) -> None:
        *arrays, out = arguments
        out[...] = on_arrays(*(array.astype(dtype) for array in arrays))

    return kernel


@cache
def bfloat16_kernel(epilogue: str) -> Any:
    """The same of bfloat16 as bits, which `cupy.fuse` does not take."""
    chain = CHAINS[epilogue]
    names = ("value", *chain.operands)
    widened_names = " ".join(
        f"float {n} = __uint_as_float((unsigned){n}_bits << 16);" for n in names
    )
    return xp.ElementwiseKernel(
        ", ".join(f"uint16 {n}_bits" for n in names),
        "uint16 out",
        f"{widened_names} unsigned bits = __float_as_uint({chain.in_cuda}); "
        "out = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;",
        "bfloat16_chain",
    )


def torch_operations(case: FusedCase, x: Operands) -> Call:
    """cuBLAS, then torch's operations one by one."""
    plan = product(case, x, "cublas")
    value, *arrays = map(as_tensor, (x.sums, *as_columns(x.arrays).values()))

    def call() -> object:
        plan()
        return case.chain.in_torch(value, *arrays)

    return call


def cublaslt_epilogue(case: FusedCase, x: Operands) -> Call:
    """cuBLASLt's own epilogue, by way of torch."""
    multiply = torch().ops.aten._addmm_activation.out
    a, b, out, vector = map(as_tensor, (x.a, x.b, x.out, x.arrays["vector"]))
    return lambda: multiply(vector, a, b, use_gelu=case.chain.cublaslt_gelu, out=out)


BASELINES = {
    "cublas_cupy": separate_kernels,
    "cublas_torch": torch_operations,
    "cublaslt": cublaslt_epilogue,
}


def baselines_of(case: FusedCase) -> dict[str, Callable[..., Call]]:
    """What else computes the epilogue of a case."""
    is_compared = {
        "cublas_cupy": case.chain.in_torch,
        "cublas_torch": case.chain.in_torch,
        "cublaslt": case.chain.cublaslt_gelu is not None,
    }
    return {name: make for name, make in BASELINES.items() if is_compared[name]}

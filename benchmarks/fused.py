"""Cases with an epilogue, one of `CHAINS`, and the same by other means.

A chain has the same functions as operations on whole arrays: `on_arrays` is what results are
compared with, and what `cupy.fuse` makes one kernel of; `in_torch` is what a user of torch would
write.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cases
import numpy as np
from cases import SMOKE, Call, Case, Operands, as_tensor, normal, same, to_dtype, widened, xp
from oracle import inputs

import dxgemm
from dxgemm import epilogues as e
from dxgemm.epilogues.philox import philox_4x32
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES

if SMOKE:
    from scipy.special import erf
else:
    from cupyx.scipy.special import erf

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
OWN_EPS, OWN_ABSOLUTE_EPS = 32, 8  # in the type of sums
OTHERS_EPS = 16  # relative and absolute, in the type of the result: some round after every step
SEED = 1234567890123


@dataclass(frozen=True)
class Chain:
    """An epilogue, and the same functions by other means.

    Attributes:
        operands: its arrays in order: "vector" (n,), "column" (m,), "matrix" and "kept" (m, n).
        bind: arrays -> epilogue.
        on_arrays: (sums, arrays), a column as (m, 1) -> result.
        is_exact: True if it rounds nothing when sums and arrays are small integers times a unit.
        is_fast: True if it may be as far off as other libraries' functions.
        in_torch: `on_arrays` for tensors; None if it is not compared with separate kernels.
        in_cuda: C++ expression of floats with these names and `value`, for bfloat16, which
            `cupy.fuse` cannot take; None for chains that bfloat16 is not measured with.
        cublaslt_gelu: `use_gelu` of torch._addmm_activation, which calls cuBLASLt's own epilogue;
            None where cuBLASLt has none.
    """

    operands: tuple[str, ...]
    bind: Callable[..., Any]
    on_arrays: Callable[..., Any]
    is_exact: bool = True
    is_fast: bool = False
    in_torch: Callable[..., Any] | None = None
    in_cuda: str | None = None
    cublaslt_gelu: bool | None = None


def gelu(value: Any) -> Any:
    return 0.5 * value * (1.0 + erf(0.5**0.5 * value))


def gelu_tanh(value: Any) -> Any:
    inner = (2.0 / np.pi) ** 0.5 * value * (1.0 + 0.044715 * value * value)
    return 0.5 * value * (1.0 + xp.tanh(inner))


def sigmoid(value: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-value))


def drop_half(value: Any) -> Any:
    return xp.where(dropped(value.shape), 0.0, 2.0 * value)


@cache
def dropped(shape: tuple[int, int]) -> Any:
    """Mask of elements dropped with a probability of 0.5, by NumPy with philox_4x32's integers."""
    rows, cols = (np.arange(size, dtype="uint64") for size in shape)
    zero, low, high = map(np.uint64, (0, SEED % 2**32, SEED >> 32))
    return xp.asarray(philox_4x32(rows[:, None], cols, zero, zero, low, high)[0] < 2**31)


def torch_gelu(value: Any, approximate: str = "none") -> Any:
    return cases.torch().nn.functional.gelu(value, approximate=approximate)


# By the text of the epilogue. Those with several steps, and `dequantise`, are compared with cuBLAS
# and separate kernels; the others, the whole catalogue, with the same kernel without an epilogue.
# The squared magnitude is that of complex numbers.
CHAINS = {
    "bias | gelu | residual": Chain(
        ("vector", "matrix"),
        lambda vector, matrix: e.bias(vector) | e.gelu | e.residual(matrix),
        lambda value, vector, matrix: gelu(value + vector) + matrix,
        is_exact=False,
        in_torch=lambda value, vector, matrix: torch_gelu(value + vector) + matrix,
        in_cuda="0.5f * (value + vector) * (1.0f + erff(0.70710678f * (value + vector))) + matrix",
    ),
    "bias | relu": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.relu,
        lambda value, vector: xp.maximum(value + vector, 0.0),
        in_torch=lambda value, vector: (value + vector).relu(),
        in_cuda="fmaxf(value + vector, 0.0f)",
        cublaslt_gelu=False,
    ),
    "bias | gelu_tanh": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.gelu_tanh,
        lambda value, vector: gelu_tanh(value + vector),
        is_exact=False,
        in_torch=lambda value, vector: torch_gelu(value + vector, "tanh"),
        in_cuda=(
            "0.5f * (value + vector) * (1.0f + tanhf(0.79788456f * (value + vector) "
            "* (1.0f + 0.044715f * (value + vector) * (value + vector))))"
        ),
        cublaslt_gelu=True,
    ),
    "bias | fast_gelu_tanh": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.fast_gelu_tanh,
        lambda value, vector: gelu_tanh(value + vector),
        is_exact=False,
        is_fast=True,
        cublaslt_gelu=True,
    ),
    "bias | squared_magnitude": Chain(
        ("vector",),
        lambda vector: e.bias(vector) | e.squared_magnitude,
        lambda value, vector: xp.real(value + vector) ** 2 + xp.imag(value + vector) ** 2,
    ),
    "dequantise": Chain(
        ("column", "vector"),
        lambda column, vector: e.dequantise(column, vector),
        lambda value, column, vector: value * column * vector,
        is_exact=False,
        in_torch=lambda value, column, vector: value * column * vector,
    ),
    "bias": Chain(("vector",), e.bias, lambda value, vector: value + vector),
    "bias_column": Chain(("column",), e.bias_column, lambda value, column: value + column),
    "relu": Chain((), lambda: e.relu.bound, lambda v: xp.maximum(v, 0.0)),
    "leaky_relu": Chain((), lambda: e.leaky_relu(0.125), lambda v: xp.where(v > 0.0, v, 0.125 * v)),
    "gelu": Chain((), lambda: e.gelu.bound, gelu, is_exact=False),
    "gelu_tanh": Chain((), lambda: e.gelu_tanh.bound, gelu_tanh, is_exact=False),
    "sigmoid": Chain((), lambda: e.sigmoid.bound, sigmoid, is_exact=False),
    "silu": Chain((), lambda: e.silu.bound, lambda v: v * sigmoid(v), is_exact=False),
    "tanh": Chain((), lambda: e.tanh.bound, lambda v: xp.tanh(v), is_exact=False),
    "clamp": Chain((), lambda: e.clamp(-1.0, 1.0), lambda v: xp.clip(v, -1.0, 1.0)),
    "residual": Chain(("matrix",), e.residual, lambda value, matrix: value + matrix),
    "scale": Chain((), lambda: e.scale(0.5), lambda v: 0.5 * v),
    "scale_rows": Chain(("column",), e.scale_rows, lambda value, column: value * column),
    "scale_columns": Chain(("vector",), e.scale_columns, lambda value, vector: value * vector),
    "keep": Chain(("kept",), lambda kept: e.keep(kept=kept), lambda value, kept: value),
    "dropout": Chain((), lambda: e.dropout(0.5, SEED), drop_half),
}
CATALOGUE = [text for text in CHAINS if " | " not in text and text != "dequantise"]


@dataclass(frozen=True)
class FusedCase(Case):
    """A problem with an epilogue, one of `CHAINS`, whose arrays have the dtype of the result.

    Arrays of a complex product are complex, whatever the result is.
    """

    epilogue: str = ""

    def tiny(self) -> Any:
        return replace(super().tiny(), n=6 if self.is_complex else 5)

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

    def scaled(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """Times a power of two that brings sums of signs into the range of activations."""
        unit = 2.0 ** -round(math.log2(math.sqrt(self.k) * 2 / 3)) if self.dtype != "int8" else 1.0
        return lambda rng, shape, dtype: unit * fill(rng, shape, dtype)

    @property
    def exact_fills(self) -> tuple[Any, Any]:
        """Small integers times a unit; all sums are exact: at most k, or those of int8."""
        if self.dtype == "int8":
            return inputs.random, inputs.random
        return self.scaled(inputs.signs), inputs.signs

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """a, b and out, the epilogue's arrays, and the array for the plain product."""
        x = super().operands(rng, is_exact)
        fill = self.scaled(inputs.integers) if is_exact else normal
        of = replace(self, dtype="float32") if self.dtype == "int8" else self  # of the arrays
        x.arrays = {
            name: to_dtype(of.draw(fill, rng, shape), self.array_dtype)
            for name, shape in self.array_shapes.items()
        }
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
        is_kept = all(self.is_rounded(array, sums, self.sums_dtype) for array in kept)
        self.require(is_right and is_kept, name)
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
    cases.gpu_only()
    plan, arrays = product(case, x, "cublas"), as_columns(x.arrays).values()
    if case.is_complex:
        chain = fused_complex_kernel(case.epilogue)
        return lambda: chain(plan(), *arrays)
    arguments = [x.sums, *arrays, x.out]
    if case.out_dtype == "bfloat16":
        kernel = bfloat16_kernel(case.epilogue)
        arguments = [xp.from_dlpack(a.view(cases.torch().int16)).view("uint16") for a in arguments]
    else:
        kernel = fused_kernel(case.epilogue, case.working_dtype)

    return cases.returning(x.out, lambda: (plan(), kernel(*arguments)))


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

    return lambda: (plan(), case.chain.in_torch(value, *arrays))[1]


def cublaslt_epilogue(case: FusedCase, x: Operands) -> Call:
    """cuBLASLt's own epilogue, by way of torch."""
    multiply = cases.torch().ops.aten._addmm_activation.out
    a, b, out, vector = map(as_tensor, (x.a, x.b, x.out, x.arrays["vector"]))
    return lambda: multiply(vector, a, b, use_gelu=case.chain.cublaslt_gelu, out=out)


BASELINES = {
    "cublas_cupy": separate_kernels,
    "cublas_torch": torch_operations,
    "cublaslt": cublaslt_epilogue,
}


def baselines_of(case: FusedCase) -> dict[str, Callable[..., Call]]:
    """What else computes the epilogue of a case."""
    names = ["cublas_cupy", "cublas_torch"] if case.chain.in_torch else []
    names += ["cublaslt"] if case.chain.cublaslt_gelu is not None else []
    return {name: BASELINES[name] for name in names}

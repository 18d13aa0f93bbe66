"""Cases with an epilogue, one of `CHAINS`, and the same by other means.

A chain has the same functions as operations on whole arrays: `on_arrays` is what results are
compared with, and what `cupy.fuse` makes one kernel of; `in_torch` is what a user of torch writes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import islice
from operator import or_
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
HALF_EPS = 2.0**-14  # of what an activation returns, if the result is float16 or bfloat16
OTHERS_EPS = 16  # relative and absolute, in the type of the result: some round after every step
SEED = 1234567890123


@dataclass(frozen=True)
class Step:
    """A function of an epilogue, and the same by other means.

    Attributes:
        bind: arrays -> epilogue.
        on_arrays: (values, arrays), a column as (m, 1) -> result.
        operands: its arrays in order: "vector" (n,), "column" (m,), "matrix" and "kept" (m, n).
        is_exact: True if it rounds nothing when values and arrays are small integers times a unit.
        in_torch: `on_arrays` for tensors, where that is another.
        in_cuda: C++ of floats with the names of operands, where `cupy.fuse` takes no bfloat16.
    """

    bind: Callable[..., Any]
    on_arrays: Callable[..., Any]
    operands: tuple[str, ...] = ()
    is_exact: bool = True
    in_torch: Callable[..., Any] | None = None
    in_cuda: str = ""


def gelu_tanh(value: Any) -> Any:
    inner = (2.0 / np.pi) ** 0.5 * value * (1.0 + 0.044715 * value * value)
    return 0.5 * value * (1.0 + xp.tanh(inner))


@cache
def dropped(shape: tuple[int, int]) -> Any:
    """Mask of elements dropped with a probability of 0.5, by NumPy with philox_4x32's integers."""
    rows, cols = (np.arange(size, dtype="uint64") for size in shape)
    zero, low, high = map(np.uint64, (0, SEED % 2**32, SEED >> 32))
    return xp.asarray(philox_4x32(rows[:, None], cols, zero, zero, low, high)[0] < 2**31)


def torch_gelu(approximate: str) -> Callable[[Any], Any]:
    return lambda v: cases.torch().nn.functional.gelu(v, approximate=approximate)


STEPS = {
    "bias": Step(e.bias, lambda v, vector: v + vector, ("vector",), in_cuda="({0} + vector)"),
    "bias_column": Step(e.bias_column, lambda v, column: v + column, ("column",)),
    "relu": Step(
        lambda: e.relu.bound, lambda v: xp.maximum(v, 0.0), in_torch=lambda v: v.relu(),
        in_cuda="fmaxf({0}, 0.0f)",
    ),
    "leaky_relu": Step(lambda: e.leaky_relu(0.125), lambda v: xp.where(v > 0.0, v, 0.125 * v)),
    "gelu": Step(
        lambda: e.gelu.bound, lambda v: 0.5 * v * (1.0 + erf(0.5**0.5 * v)), is_exact=False,
        in_torch=torch_gelu("none"), in_cuda="0.5f * {0} * (1.0f + erff(0.70710678f * {0}))",
    ),
    "gelu_tanh": Step(
        lambda: e.gelu_tanh.bound, gelu_tanh, is_exact=False, in_torch=torch_gelu("tanh"),
        in_cuda="0.5f * {0} * (1.0f + tanhf(0.79788456f * {0} * (1.0f + 0.044715f * {0} * {0})))",
    ),
    "fast_gelu_tanh": Step(lambda: e.fast_gelu_tanh.bound, gelu_tanh, is_exact=False),
    "squared_magnitude": Step(
        lambda: e.squared_magnitude.bound, lambda v: xp.real(v) ** 2 + xp.imag(v) ** 2
    ),
    "sigmoid": Step(lambda: e.sigmoid.bound, lambda v: 1.0 / (1.0 + xp.exp(-v)), is_exact=False),
    "silu": Step(lambda: e.silu.bound, lambda v: v * (1.0 / (1.0 + xp.exp(-v))), is_exact=False),
    "tanh": Step(lambda: e.tanh.bound, lambda v: xp.tanh(v), is_exact=False),
    "clamp": Step(lambda: e.clamp(-1.0, 1.0), lambda v: xp.clip(v, -1.0, 1.0)),
    "residual": Step(
        e.residual, lambda v, matrix: v + matrix, ("matrix",), in_cuda="({0} + matrix)"
    ),
    "scale": Step(lambda: e.scale(0.5), lambda v: 0.5 * v),
    "scale_rows": Step(e.scale_rows, lambda v, column: v * column, ("column",)),
    "scale_columns": Step(e.scale_columns, lambda v, vector: v * vector, ("vector",)),
    "dequantise": Step(
        e.dequantise, lambda v, column, vector: v * column * vector, ("column", "vector"),
        is_exact=False,
    ),
    "keep": Step(lambda kept: e.keep(kept=kept), lambda v, kept: v, ("kept",)),
    "dropout": Step(
        lambda: e.dropout(0.5, SEED), lambda v: xp.where(dropped(v.shape), 0.0, 2.0 * v)
    ),
}  # fmt: skip


class Chain:
    """An epilogue of several steps, which its text names."""

    def __init__(self, text: str) -> None:
        self.steps = [STEPS[name] for name in text.split(" | ")]
        self.operands = [name for step in self.steps for name in step.operands]
        self.is_exact = all(step.is_exact for step in self.steps)
        self.is_fast = "fast_" in text  # may be as far off as other libraries' functions

    def shared_out(self, arrays: Iterable[Any]) -> list[tuple[Step, list[Any]]]:
        """The steps with their arrays."""
        remaining = iter(arrays)
        return [(step, list(islice(remaining, len(step.operands)))) for step in self.steps]

    def bind(self, *arrays: Any) -> Any:
        return reduce(or_, (step.bind(*own) for step, own in self.shared_out(arrays)))

    def on_arrays(self, value: Any, *arrays: Any) -> Any:
        for step, own in self.shared_out(arrays):
            value = step.on_arrays(value, *own)
        return value

    def peak(self, value: Any, *arrays: Any) -> Any:
        """Largest magnitude of what inexact steps return, which later steps may cancel."""
        peak = 0.0
        for step, own in self.shared_out(arrays):
            value = step.on_arrays(value, *own)
            peak = peak if step.is_exact else xp.maximum(peak, abs(value))
        return peak

    def in_torch(self, value: Any, *arrays: Any) -> Any:
        for step, own in self.shared_out(arrays):
            value = (step.in_torch or step.on_arrays)(value, *own)
        return value

    @property
    def in_cuda(self) -> str:
        return reduce(lambda code, step: step.in_cuda.format(code), self.steps, "value")


# Chains that are compared with separate kernels; and `use_gelu` of torch._addmm_activation, which
# calls cuBLASLt's own epilogue. The catalogue is compared with the same kernel without an epilogue.
# The squared magnitude is that of complex numbers.
COMPARED = ("bias | gelu | residual", "bias | relu", "bias | gelu_tanh", "dequantise")
CUBLASLT = {"bias | relu": False, "bias | gelu_tanh": True, "bias | fast_gelu_tanh": True}
CATALOGUE = [
    name for name in STEPS if name not in ("fast_gelu_tanh", "squared_magnitude", "dequantise")
]
CHAINS = {
    text: Chain(text) for text in (*COMPARED, *CUBLASLT, "bias | squared_magnitude", *CATALOGUE)
}


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
        """The sums, the results, which are not rounded, and the magnitude of inexact steps."""
        sums = xp.matmul(widened(x.a), widened(x.b))
        arrays = as_columns({name: widened(array) for name, array in x.arrays.items()})
        return sums, self.chain.on_arrays(sums, *arrays), self.chain.peak(sums, *arrays)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        sums, values, peak = expected
        kept = [array for key, array in x.arrays.items() if key == "kept"]
        for array in (x.sums, x.out, *kept):
            self.spoil(array)
        result = call()
        is_plan = isinstance(call, dxgemm.Plan)
        if is_plan and call.explain().work.epilogue is None:
            is_right, kept = is_rounded(result, sums, self.sums_dtype), []
        elif self.chain.is_exact:
            is_right = is_rounded(result, values, self.out_dtype)
        else:
            eps, factors = EPS[self.working_dtype], (OWN_EPS, OWN_ABSOLUTE_EPS)
            if not is_plan or self.chain.is_fast:
                eps, factors = EPS[self.out_dtype], (OTHERS_EPS, OTHERS_EPS)
            relative = max(factors[0] * eps, EPS[self.out_dtype])
            allowed = relative * abs(values) + factors[1] * eps
            if self.out_dtype in ("float16", "bfloat16"):
                allowed = allowed + HALF_EPS * peak
            is_right = bool((abs(widened(result) - values) <= allowed).all())
        is_kept = all(is_rounded(array, sums, self.sums_dtype) for array in kept)
        self.require(is_right and is_kept, name)
        return {}


def is_rounded(found: Any, exact: Any, dtype: str) -> bool:
    return same(widened(found), widened(to_dtype(exact, dtype)))


def as_columns(arrays: dict[str, Any]) -> list[Any]:
    """Columns as (m, 1), so that they are broadcast along the rows."""
    return [a[:, None] if name == "column" else a for name, a in arrays.items()]


def fused(implementation: Any = None) -> Callable[[FusedCase, Operands], dxgemm.Plan]:
    """Variant: the epilogue in the product's kernel."""

    def make(case: FusedCase, x: Operands) -> dxgemm.Plan:
        epilogue = case.chain.bind(*x.arrays.values())
        return dxgemm.plan(x.a, x.b, out=x.out, epilogue=epilogue, implementation=implementation)

    return make


def plain(implementation: Any = None) -> Callable[[FusedCase, Operands], dxgemm.Plan]:
    """Variant: the kernel of `fused(implementation)` without the epilogue."""
    return lambda case, x: product(x, own_choice(fused(implementation)(case, x)))


def product(x: Operands, implementation: Any = None) -> dxgemm.Plan:
    return dxgemm.plan(x.a, x.b, out=x.sums, implementation=implementation)


def own_choice(plan: dxgemm.Plan) -> tuple[str, Any]:
    """Value of `implementation=` for exactly the kernel of a plan."""
    candidate = plan.route.decision.candidate
    return candidate.implementation.name, candidate.config


def separate_kernels(case: FusedCase, x: Operands) -> Call:
    """cuBLAS, then one kernel that `cupy.fuse` makes of the chain."""
    cases.gpu_only()
    plan, arrays = product(x, "cublas"), as_columns(x.arrays)
    kernel = chain_kernel(case.epilogue, case.out_dtype, case.working_dtype, case.is_complex)
    if case.is_complex:
        return lambda: kernel(plan(), *arrays)
    arguments = [x.sums, *arrays, x.out]
    if case.out_dtype == "bfloat16":
        arguments = [xp.from_dlpack(a.view(cases.torch().int16)).view("uint16") for a in arguments]
    return cases.returning(x.out, lambda: (plan(), kernel(*arguments)))


@cache
def chain_kernel(epilogue: str, dtype: str, working_dtype: str, is_complex: bool) -> Any:
    """One kernel of (sums, arrays..., out), which computes as `gemm` does; complex without out.

    bfloat16 is taken as bits, as `cupy.fuse` does not know it.
    """
    chain = CHAINS[epilogue]
    if is_complex:
        return xp.fuse(kernel_name="chain")(chain.on_arrays)
    if dtype == "bfloat16":
        names = ("value", *chain.operands)
        wide = (f"float {n} = __uint_as_float((unsigned){n}_bits << 16);" for n in names)
        return xp.ElementwiseKernel(
            ", ".join(f"uint16 {n}_bits" for n in names),
            "uint16 out",
            f"{' '.join(wide)} unsigned bits = __float_as_uint({chain.in_cuda}); "
            "out = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;",
            "bfloat16_chain",
        )

    @xp.fuse
    def kernel(*arguments: Any) -> None:
        *arrays, out = arguments
        out[...] = chain.on_arrays(*(array.astype(working_dtype) for array in arrays))

    return kernel


def torch_operations(case: FusedCase, x: Operands) -> Call:
    """cuBLAS, then torch's operations one by one."""
    value, *arrays = map(as_tensor, (x.sums, *as_columns(x.arrays)))
    plan, in_torch = product(x, "cublas"), case.chain.in_torch
    return lambda: (plan(), in_torch(value, *arrays))[1]


def cublaslt_epilogue(case: FusedCase, x: Operands) -> Call:
    """cuBLASLt's own epilogue, by way of torch."""
    multiply = cases.torch().ops.aten._addmm_activation.out
    a, b, out, vector = map(as_tensor, (x.a, x.b, x.out, x.arrays["vector"]))
    return lambda: multiply(vector, a, b, use_gelu=CUBLASLT[case.epilogue], out=out)


SEPARATE = {"cublas_cupy": separate_kernels, "cublas_torch": torch_operations}
BASELINES = {**SEPARATE, "cublaslt": cublaslt_epilogue}


def baselines_of(case: FusedCase) -> dict[str, Any]:
    """What else computes the epilogue of a case."""
    found: dict[str, Any] = dict(SEPARATE) if case.epilogue in COMPARED else {}
    return found | ({"cublaslt": cublaslt_epilogue} if case.epilogue in CUBLASLT else {})

"""Epilogues fused into `gemm`, and the same by other means: checked first, then timed interleaved.

Like `comparison.py`, for problems with an epilogue of `chains.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from chains import CHAINS, Chain
from comparison import (
    WRONG_INTEGER,
    Attempt,
    Case,
    Timer,
    arrange,
    make_timer,
    random_operands,
    sets_of_operands,
    take_turns,
    to_dtype,
    to_dtypes,
    working_dtype,
    xp,
)
from oracle import inputs

import dxgemm
from dxgemm import errors
from dxgemm.call.epilogue import fuse
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.layout import Layout, Strides
from dxgemm.problem.problem import Problem
from dxgemm.tuning.sampling import calls_in_sample

CASE_S = 0.3  # of timing a case, unless fewest rounds take longer
AUTOMATIC = "automatic"
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
OWN_EPS, OWN_ABSOLUTE_EPS = 32, 8  # in the type of sums
OTHERS_EPS = 16  # relative and absolute, in the type of the result: some round after every step

Call = Callable[[], object]


@dataclass(frozen=True)
class FusedCase(Case):
    """A problem with an epilogue, one of `CHAINS`, whose arrays have the dtype of the result."""

    epilogue: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}-{self.epilogue.replace(' | ', '+')}"

    @property
    def chain(self) -> Chain:
        return CHAINS[self.epilogue]

    @property
    def array_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {"vector": (self.n,), "column": (self.m,)}
        return {name: shapes.get(name, (self.m, self.n)) for name in self.chain.operands}

    @property
    def bytes_moved(self) -> int:
        elements = sum(map(math.prod, self.array_shapes.values()))
        return super().bytes_moved + ITEM_SIZES[self.out_dtype] * elements

    @property
    def sums_dtype(self) -> str:
        """Dtype that cuBLAS writes before another kernel reads it."""
        return "int32" if self.dtype == "int8" else self.out_dtype

    @property
    def baselines(self) -> list[str]:
        names = ["cublas_cupy", "cublas_torch"] if self.chain.in_torch else []
        return names + (["cublaslt"] if self.chain.cublaslt_gelu is not None else [])


@dataclass
class Operands:
    """a, b and out of a case, the epilogue's arrays, and the array for the plain product."""

    a: Any
    b: Any
    out: Any
    arrays: dict[str, Any]
    sums: Any


def problems_of(case: FusedCase) -> tuple[Problem, Problem]:
    """Problems of a case with the epilogue and without, as plans on its operands define them."""
    plain = contiguous_problem(case.dtype, case.m, case.n, case.k)
    if case.arrangement.split("_")[1] == "col":
        plain = replace(plain, b=Strides(plain.b.batch, 1, case.k))
    shape = case.chain.bind(*(None for _ in case.chain.operands)).shape
    sizes = {"row": (case.n,), "column": (case.m,)}
    size = ITEM_SIZES[case.out_dtype]
    layouts = {}
    for operand, label in zip(shape.operands, shape.labels):
        if label is not None:
            extents = sizes.get(operand.kind, (case.m, case.n))
            strides = (case.n * size, size)[-len(extents) :]
            layouts[label] = Layout(extents, strides, case.out_dtype, 0, False)
    fused, _ = fuse(replace(plain, out_dtype=case.out_dtype), shape, layouts)
    return fused, plain


def own_call(implementation: Any) -> Callable[[FusedCase, Operands], Call]:
    def make(case: FusedCase, operands: Operands) -> dxgemm.Plan:
        return dxgemm.plan(
            operands.a,
            operands.b,
            out=operands.out,
            epilogue=case.chain.bind(*operands.arrays.values()),
            implementation=implementation,
        )

    return make


def plain_call(implementation: Any) -> Callable[[FusedCase, Operands], Call]:
    def make(case: FusedCase, operands: Operands) -> dxgemm.Plan:
        return dxgemm.plan(operands.a, operands.b, out=operands.sums, implementation=implementation)

    return make


def cublas_cupy_call(case: FusedCase, operands: Operands) -> Call:
    plain = plain_call("cublas")(case, operands)
    arguments = [operands.sums, *as_columns(operands.arrays).values(), operands.out]
    if case.out_dtype == "bfloat16":
        kernel = bfloat16_kernel(case.epilogue)
        arguments = [xp.from_dlpack(a.view(torch().int16)).view("uint16") for a in arguments]
    else:
        kernel = fused_kernel(case.epilogue, working_dtype(case))

    def call() -> object:
        plain()
        kernel(*arguments)
        return operands.out

    return call


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
    widened = " ".join(f"float {n} = __uint_as_float((unsigned){n}_bits << 16);" for n in names)
    return xp.ElementwiseKernel(
        ", ".join(f"uint16 {n}_bits" for n in names),
        "uint16 out",
        f"{widened} unsigned bits = __float_as_uint({chain.in_cuda}); "
        "out = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;",
        "bfloat16_chain",
    )


def cublas_torch_call(case: FusedCase, operands: Operands) -> Call:
    plain = plain_call("cublas")(case, operands)
    value, *arrays = map(as_tensor, (operands.sums, *as_columns(operands.arrays).values()))

    def call() -> object:
        plain()
        return case.chain.in_torch(value, *arrays)

    return call


def cublaslt_call(case: FusedCase, operands: Operands) -> Call:
    multiply = torch().ops.aten._addmm_activation.out
    a, b, out, vector = map(
        as_tensor, (operands.a, operands.b, operands.out, operands.arrays["vector"])
    )
    return lambda: multiply(vector, a, b, use_gelu=case.chain.cublaslt_gelu, out=out)


BASELINES = {
    "cublas_cupy": cublas_cupy_call,
    "cublas_torch": cublas_torch_call,
    "cublaslt": cublaslt_call,
}


def torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise errors.MissingPackageError(f"torch is not installed ({error})") from None
    return torch


def as_tensor(array: Any) -> Any:
    """View an array as a torch tensor of the same memory."""
    return array if isinstance(array, torch().Tensor) else torch().from_dlpack(array)


def as_columns(arrays: dict[str, Any]) -> dict[str, Any]:
    """Columns as (m, 1), so that they are broadcast along the rows."""
    return {name: a[:, None] if name == "column" else a for name, a in arrays.items()}


def as_float64(array: Any) -> Any:
    """Convert an array to float64, in CuPy or, in the simulator, in NumPy."""
    if type(array).__module__ == "torch":
        return xp.from_dlpack(array.double())
    return array.astype("float64")


def exact_operands(case: FusedCase) -> Operands:
    """Operands of small integers times a unit, whose sums are in the range of activations.

    All sums are exact: at most k, or those of int8.
    """
    rng = xp.random.default_rng(1)
    unit = 1.0
    if case.dtype == "int8":
        factors = [inputs.random(rng, shape, case.dtype) for shape in case.shapes[:2]]
    else:
        unit = 2.0 ** -round(math.log2(math.sqrt(case.k) * 2 / 3))
        dtype = working_dtype(case)
        factors = [inputs.signs(rng, shape, dtype) for shape in case.shapes[:2]]
        factors[0] *= unit
    out = xp.full(case.shapes[2], WRONG_INTEGER, working_dtype(case))
    a, b, out = to_dtypes(case, arrange(case, [*factors, out]))
    arrays = {
        name: to_dtype(unit * inputs.integers(rng, shape, working_dtype(case)), case.out_dtype)
        for name, shape in case.array_shapes.items()
    }
    return Operands(a, b, out, arrays, sums_of(case, out))


def random_arrays(case: FusedCase, rng: Any) -> Operands:
    a, b, out = random_operands(case, rng)
    arrays = {
        name: to_dtype(rng.standard_normal(shape, dtype=working_dtype(case)), case.out_dtype)
        for name, shape in case.array_shapes.items()
    }
    return Operands(a, b, out, arrays, sums_of(case, out))


def sums_of(case: FusedCase, out: Any) -> Any:
    """Array that receives the product: out itself, or an int32 array beside it."""
    return out if case.sums_dtype == case.out_dtype else xp.empty(out.shape, case.sums_dtype)


class Gate:
    """Exact operands of one case; lets pass what gives the right results on them."""

    def __init__(self, case: FusedCase, timer: Timer) -> None:
        self._case = case
        self._timer = timer
        self._operands = exact_operands(case)
        self._sums = xp.matmul(as_float64(self._operands.a), as_float64(self._operands.b))
        arrays = {name: as_float64(array) for name, array in self._operands.arrays.items()}
        self._expected = case.chain.on_arrays(self._sums, *as_columns(arrays).values())

    def attempt(self, name: str, make: Callable[[FusedCase, Operands], Call]) -> Attempt:
        """Check a call and time it once; its `implementation` becomes the kernel that ran."""
        attempt = Attempt(name)
        operands = self._operands
        try:
            call = make(self._case, operands)
        except (
            errors.UnsupportedProblemError,
            errors.BuildError,
            errors.MissingPackageError,
        ) as error:
            attempt.refusal = str(error)
            return attempt
        operands.sums[...] = WRONG_INTEGER  # of int8; else it is out
        written = [array for key, array in operands.arrays.items() if key == "kept"]
        for array in (operands.out, *written):
            array[...] = math.nan
        result = call()
        if isinstance(call, dxgemm.Plan):
            attempt.explanation = call.explain()
            attempt.implementation = own_choice(call)
            if attempt.explanation.work.epilogue is None:
                written, is_right = [], self._equals_sums(result)
            else:
                is_right = self._is_right(result, *self._own_tolerance)
        else:
            tolerance = OTHERS_EPS * EPS[self._case.out_dtype]
            is_right = self._is_right(result, tolerance, tolerance)
        attempt.is_wrong = not (is_right and all(map(self._equals_sums, written)))
        if not attempt.is_wrong:
            attempt.call_s = self._timer([call])
        return attempt

    @property
    def _own_tolerance(self) -> tuple[float, float]:
        eps = EPS[working_dtype(self._case)]
        return OWN_EPS * eps, OWN_ABSOLUTE_EPS * eps

    def _equals_sums(self, array: Any) -> bool:
        rounded = as_float64(to_dtype(self._sums, self._case.sums_dtype))
        return bool((as_float64(array) == rounded).all())

    def _is_right(self, result: Any, relative: float, absolute: float) -> bool:
        result = as_float64(result)
        if self._case.chain.is_exact:
            rounded = as_float64(to_dtype(self._expected, self._case.out_dtype))
            return bool((result == rounded).all())
        relative = max(relative, EPS[self._case.out_dtype])
        error = abs(result - self._expected)
        return bool((error <= relative * abs(self._expected) + absolute).all())


def own_choice(plan: dxgemm.Plan) -> tuple[str, Any]:
    """Value of `implementation=` for exactly the kernel of a plan."""
    candidate = plan.route.decision.candidate
    return candidate.implementation.name, candidate.config


@dataclass
class Measurement:
    """One case: attempts by name, and samples; those of plain kernels by (name, "plain")."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    samples_s: dict[Any, list[float]] = field(default_factory=dict)

    def seconds(self, name: Any) -> float:
        return statistics.median(self.samples_s[name])


class Comparison:
    """Measures cases as they come and remembers the last one."""

    def __init__(self) -> None:
        self._timer = make_timer()
        self._case: FusedCase | None = None
        self._measurement = Measurement()

    def measure(self, case: FusedCase, choices: Mapping[str, Any]) -> Measurement:
        """Check and time a case.

        Args:
            choices: values of `implementation=`, by name; one is `AUTOMATIC`.
        """
        if case != self._case:
            self._case, self._measurement = case, self._measure(case, choices)
        return self._measurement

    def _measure(self, case: FusedCase, choices: Mapping[str, Any]) -> Measurement:
        result = Measurement()
        gate = Gate(case, self._timer)
        makers: dict[Any, Callable[[FusedCase, Operands], Call]] = {}
        call_s = {}
        for name, choice in choices.items():
            attempt = result.attempts[name] = gate.attempt(name, own_call(choice))
            automatic = result.attempts[AUTOMATIC]
            if attempt.refusal or attempt.is_wrong:
                continue
            if name != AUTOMATIC and attempt.implementation == automatic.implementation:
                attempt.refusal = "the automatic choice is the same"
                continue
            without = gate.attempt(name, plain_call(attempt.implementation))
            if without.refusal or without.is_wrong:
                attempt.refusal = without.refusal or "its plain product is wrong"
                continue
            makers |= {
                name: own_call(attempt.implementation),
                (name, "plain"): plain_call(attempt.implementation),
            }
            call_s |= {name: attempt.call_s, (name, "plain"): without.call_s}
        for name in case.baselines:
            attempt = result.attempts[name] = gate.attempt(name, BASELINES[name])
            if not (attempt.refusal or attempt.is_wrong):
                makers[name], call_s[name] = BASELINES[name], attempt.call_s
        del gate  # its operands: the next ones are as large
        rng = xp.random.default_rng(0)
        sets = sets_of_operands(case, max(map(calls_in_sample, call_s.values()), default=1))
        operands = [random_arrays(case, rng) for _ in range(sets)]
        calls = {name: [make(case, one) for one in operands] for name, make in makers.items()}
        result.samples_s = take_turns(calls, call_s, self._timer, CASE_S)
        return result

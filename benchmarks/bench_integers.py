"""GPU time of products of integers and bool, against CuPy, JAX and, of int8, torch.

Operands hold all that their dtype does. Results must be those of CuPy in 64 bits, cut to their
dtype; modulo a number, those of CuPy's products of pieces of k. CuPy and JAX give results of the
operands' dtype, and dxgemm its default. Modulo a number, CuPy and JAX compute the same product of
integers, without the remainder: neither has one that is exact. JAX runs on a stream of its own:
each of its calls is waited for and timed by the host's clock, in turn with the others' samples. Its
time has a launch and a wait in it, so that it takes part in large products alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from cases import SMOKE, Call, Case, Operands, same, xp
from measuring import OWN, Found, Row, Variants, Waiting, bench, fastest, fields, ratio
from rivals import as_tensor, torch

import dxgemm
from dxgemm import errors
from dxgemm.problem.dtypes import factor_dtypes

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
JAX_SIZES = range(2**30, 2**36 + 1)  # pairs of elements: beyond, int64 takes about 1 s
CUPY, JAX, TORCH = "cupy", "jax", "torch._int_mm"
DTYPES = ("int8", "uint8 int8", "int16", "int32", "int64", "bool")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")  # computed as those with a sign: fewer cases
SHAPES = (
    (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (999, 1001, 1003), (1, 4096, 4096), (16, 4096, 4096), (512, 512, 2**17),
)  # fmt: skip
UNSIGNED_SHAPES = ((1024, 1024, 1024), (4096, 4096, 4096), (999, 1001, 1003))
BATCHES = ((4, 512), (64, 64))
# Modulo numbers: the largest, a prime of number-theoretic transforms, and a short one.
MODULAR = (
    ("int32", 2**31 - 1), ("int32", 998_244_353), ("int32", 65_537), ("uint8", 2),
    ("int64", 998_244_353),
)  # fmt: skip
MODULAR_SHAPES = ((256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192))


@dataclass(frozen=True)
class IntegerCase(Case):
    """A product of matrices that hold all that their dtypes do; of bool, few that are true.

    Attributes:
        modulus: number modulo which the result is taken; 0 for none.
    """

    modulus: int = 0

    def __str__(self) -> str:
        return super().__str__() + (f" modulo {self.modulus}" if self.modulus else "")

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        shapes, dtypes = self.shapes[:2], factor_dtypes(self.dtype)
        a, b = (drawn(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        return Operands(a=a, b=b)

    def expected(self, x: Operands) -> Any:
        if self.modulus:
            return expected_modulo(self.modulus, x.a, x.b).astype(self.out_dtype)
        sums = xp.matmul(x.a.astype("uint64"), x.b.astype("uint64"))
        return sums != 0 if self.dtype == "bool" else sums.astype(self.out_dtype)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        result = call()
        if name != OWN:
            return {}
        if not same(result, expected):
            self.fail(name)
        return {"form": call.explain().work.computed_as}  # type: ignore[attr-defined]


def drawn(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "bool":
        return rng.integers(0, 2**10, shape) == 0
    low, high = (rng.integers(0, 2**32, shape, dtype="uint64") for _ in range(2))
    return (high << 32 | low).astype(dtype)


def expected_modulo(modulus: int, a: Any, b: Any) -> Any:
    """Product of residues below 2**31 by 15 and 16 of their bits, whose sums are below 2**63."""
    a, b = (x.astype("int64") % modulus for x in (a, b))
    upper = xp.matmul(a >> 16, b) % modulus
    return ((upper << 16) + xp.matmul(a & 0xFFFF, b)) % modulus


def own(case: Any, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, modulus=case.modulus or None)


def cupy_call(case: Case, x: Operands) -> Call:
    return lambda: xp.matmul(x.a, x.b)


@cache
def jax() -> Any:
    """JAX with integers of 64 bits, which leaves the memory of the GPU to others."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices("gpu")
    except (ImportError, RuntimeError) as error:
        raise errors.MissingPackageError(f"no JAX with a GPU ({error})") from None
    return jax


@cache
def compiled_matmul() -> Any:
    """jax.numpy.matmul, compiled once for all operands of a shape and dtype."""
    return jax().jit(jax().numpy.matmul)


def jax_call(case: Case, x: Operands) -> Call:
    """The product by JAX, which is compiled and waited for."""
    multiply = compiled_matmul()
    try:
        a, b = (jax().dlpack.from_dlpack(operand) for operand in (x.a, x.b))
        multiply(a, b).block_until_ready()
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise errors.MissingPackageError(f"JAX does not multiply {case}: {error}") from error
    return Waiting(lambda: multiply(a, b).block_until_ready())


def torch_call(case: Case, x: Operands) -> Call:
    a, b = map(as_tensor, (x.a, x.b))
    return lambda: torch()._int_mm(a, b)


def variants_of(case: Case) -> Variants:
    if SMOKE or case.dtype == "uint8 int8":
        return {OWN: own}
    variants = {OWN: own, CUPY: cupy_call}
    if case.m * case.n * case.k * case.batch in JAX_SIZES:
        variants[JAX] = jax_call
    if case.dtype == "int8" and case.m > 16 and case.batch == 1 and case.n % 8 == case.k % 8 == 0:
        variants[TORCH] = torch_call
    return variants


def list_cases() -> list[Case]:
    if SMOKE:
        smoke = [IntegerCase("uint8 int8", 6, 5, 3), IntegerCase("int64", 5, 6, 4)]
        return [*smoke, IntegerCase("int32", 5, 6, 7, modulus=2**31 - 1)]
    cases: list[Case] = [IntegerCase(dtype, *shape) for dtype in DTYPES for shape in SHAPES]
    cases += [IntegerCase(dtype, *shape) for dtype in UNSIGNED for shape in UNSIGNED_SHAPES]
    cases += [IntegerCase(d, n, n, n, batch=batch) for d in DTYPES for batch, n in BATCHES]
    for dtype, modulus in MODULAR:
        cases += [IntegerCase(dtype, *shape, modulus=modulus) for shape in MODULAR_SHAPES]
    return cases


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    rival = fastest(found, (CUPY, JAX, TORCH))
    more = {
        "modulus": row.case.modulus,
        "tops": 1e-12 * row.case.flops / found[name].seconds,
        "vs_cupy": ratio(found, CUPY, name),
        "vs_jax": ratio(found, JAX, name),
        "rival": rival,
        "vs_rival": ratio(found, rival, name),
    }
    return fields(row, name, found, **more)


bench_integers = bench(
    [Row(case, variants_of(case), [OWN]) for case in list_cases()], describe, budget_s=CASE_S
)

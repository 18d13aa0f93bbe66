"""GPU time of products of integers and bool, against CuPy, JAX and, of int8, torch.

Operands hold all that their dtype does. Results must be those of CuPy in 64 bits, cut to their
dtype; modulo a number, those of CuPy's products of pieces of k. CuPy and JAX give results of the
operands' dtype, and dxgemm its default. Modulo a number, CuPy and JAX compute the same product of
integers, without the remainder: neither has one that is exact. JAX runs on a stream of its own:
each of its calls is waited for and timed by the host's clock, in turn with the others' samples. Its
time has a launch and a wait in it, so that it takes part in large products alone.
"""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from cases import Call, Case, Operands, as_tensor, gpu_only, grid, same, torch, xp
from measuring import OWN, Found, Row, Waiting, bench

import dxgemm
from dxgemm.errors import MissingPackageError
from dxgemm.problem.dtypes import factor_dtypes

JAX_SIZES = range(2**30, 2**36 + 1)  # pairs of elements: beyond, int64 takes about 1 s
CUPY, JAX, TORCH = "cupy", "jax", "torch._int_mm"
DTYPES = ["int8", "uint8 int8", "int16", "int32", "int64", "bool"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]  # computed as those with a sign: fewer cases
SHAPES = [256, 512, 1024, 2048, 4096, 8192, (999, 1001, 1003), (1, 4096, 4096), (16, 4096, 4096)]
SHAPES += [(512, 512, 2**17)]
# Modulo numbers: the largest, a prime of number-theoretic transforms, and a short one.
MODULAR = [
    {"dtype": dtype, "modulus": modulus}
    for dtype, modulus in (
        ("int32", 2**31 - 1), ("int32", 998_244_353), ("int32", 65_537), ("uint8", 2),
        ("int64", 998_244_353),
    )
]  # fmt: skip


@dataclass(frozen=True)
class IntegerCase(Case):
    """A product of matrices that hold all that their dtypes do; of bool, few that are true.

    Attributes:
        modulus: number modulo which the result is taken; 0 for none.
    """

    modulus: int = 0

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        shapes, dtypes = self.shapes[:2], factor_dtypes(self.dtype)
        a, b = (drawn(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        return Operands(a=a, b=b)

    def expected(self, x: Operands) -> Any:
        """Products of residues below 2**31 by 15 and 16 of their bits, whose sums are below 2**63.

        Without a modulus the product, cut to the dtype of the result.
        """
        if self.modulus:
            a, b = (each.astype("int64") % self.modulus for each in (x.a, x.b))
            upper = xp.matmul(a >> 16, b) % self.modulus
            sums = ((upper << 16) + xp.matmul(a & 0xFFFF, b)) % self.modulus
        else:
            sums = xp.matmul(x.a.astype("uint64"), x.b.astype("uint64"))
        return sums != 0 if self.dtype == "bool" else sums.astype(self.out_dtype)

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        result = call()
        if name != OWN:
            return {}
        self.require(same(result, expected), name)
        return {"form": call.explain().work.computed_as}  # type: ignore[attr-defined]


def drawn(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "bool":
        return rng.integers(0, 2**10, shape) == 0
    low, high = (rng.integers(0, 2**32, shape, dtype="uint64") for _ in range(2))
    return (high << 32 | low).astype(dtype)


def own(case: Any, x: Operands) -> Call:
    return dxgemm.plan(x.a, x.b, modulus=case.modulus or None)


def cupy_call(case: Case, x: Operands) -> Call:
    return lambda: xp.matmul(x.a, x.b)


@cache
def jax() -> tuple[Any, Any]:
    """JAX with integers of 64 bits, which leaves the memory of the GPU to others; its matmul."""
    gpu_only()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices("gpu")
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError(f"no JAX with a GPU ({error})") from None
    return jax, jax.jit(jax.numpy.matmul)


def jax_call(case: Case, x: Operands) -> Call:
    """The product by JAX, which is compiled and waited for."""
    library, multiply = jax()
    try:
        a, b = (library.dlpack.from_dlpack(operand) for operand in (x.a, x.b))
        multiply(a, b).block_until_ready()
    except Exception as error:  # of whatever type: what it lacks shows when it is used
        raise MissingPackageError(f"JAX does not multiply {case}: {error}") from error
    return Waiting(lambda: multiply(a, b).block_until_ready())


def torch_call(case: Case, x: Operands) -> Call:
    a, b = map(as_tensor, (x.a, x.b))
    return lambda: torch()._int_mm(a, b)


def rivals(case: Case) -> dict[str, Any]:
    if case.dtype == "uint8 int8":
        return {}
    found: dict[str, Any] = {CUPY: cupy_call}
    if case.m * case.n * case.k * case.batch in JAX_SIZES:
        found[JAX] = jax_call
    if case.dtype == "int8" and case.m > 16 and case.batch == 1 and case.n % 8 == case.k % 8 == 0:
        found[TORCH] = torch_call
    return found


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    return {"tops": 1e-12 * row.case.flops / found[name].seconds}


CASES = grid(IntegerCase, dtype=DTYPES, size=SHAPES)
CASES += grid(IntegerCase, dtype=UNSIGNED, size=[1024, 4096, (999, 1001, 1003)])
CASES += grid(IntegerCase, dtype=DTYPES, size=[(512, 512, 512, 4), (64, 64, 64, 64)])
CASES += grid(IntegerCase, of=MODULAR, size=[256, 1024, 4096, 8192])
bench_integers = bench(
    CASES,
    {OWN: own},
    rivals,
    describe,
    rivals=(CUPY, JAX, TORCH),
    vs={"vs_cupy": CUPY, "vs_jax": JAX},
    budget_s=0.1,
)

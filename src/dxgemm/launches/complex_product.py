"""Launches of complex products: copies of operands, then a real product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dxgemm.choice.cublas_limits import supports
from dxgemm.compiler import KernelSpec
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import complex_copy, complex_sum
from dxgemm.launches.cublas import CublasLaunch
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.complex_form import (
    ComplexCopy,
    ComplexForm,
    in_parts,
    real_form,
    scaling_copy,
)
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, THREE_PRODUCTS
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel

LAYOUTS = ("row_row", "row_col", "col_row", "col_col")


class ComplexLaunch(LaunchSeries):
    """Launch of the copies that a complex problem needs, and of its real product.

    A complex alpha is multiplied into b, a complex beta into c, before the product; real ones are
    factors of the product.
    """

    def __init__(self, form: ComplexForm, product: Launch, arch: str, ordinal: int) -> None:
        """Bind the kernels of the copies, building missing ones.

        Args:
            form: the problem and its copies.
            product: the bound launch of the real product.
            arch, ordinal: architecture and ordinal of the GPU.
        """
        super().__init__(ordinal)
        self._product = product
        self._copies = {name: bind_copy(copy, arch, ordinal) for name, copy in form.copies.items()}
        item_size = ITEM_SIZES[form.product.dtype]
        self._places = {
            name: self._take(copy.size * item_size)
            for name, copy in form.copies.items()
            if name != "c"
        }
        self._conjugates_factor = "b" in form.copies and form.copies["b"].conjugates_factor
        self._scaling = None
        if form.problem.reads_c and "c" not in form.copies:
            self._scaling = bind_copy(scaling_copy(form), arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        places = {name: base + place for name, place in self._places.items()}
        target = places.get("out", out)
        calls = []
        if "a" in self._copies:
            calls.append(_call(self._copies["a"], a, places["a"], 1.0))
        if "b" in self._copies:
            factor = alpha if type(alpha) is complex else 1.0
            factor = factor.conjugate() if self._conjugates_factor else factor
            calls.append(_call(self._copies["b"], b, places["b"], factor))
        if "c" in self._copies:
            calls.append(_call(self._copies["c"], c, target, beta))
            beta = 1.0
        elif type(beta) is complex:
            calls.append(_call(self._scaling, out, out, beta))
            beta = 1.0
        alpha = 1.0 if type(alpha) is complex else alpha
        sources = places.get("a", a), places.get("b", b)
        calls.append(Call(self._product, (*sources, target, target, alpha, beta)))
        if "out" in self._copies:
            calls.append(_call(self._copies["out"], target, out, 1.0))
        return calls


class SummedLaunch(LaunchSeries):
    """Launch of several real products of parts, in one batch, and of the kernel that adds them."""

    def __init__(self, form: ComplexForm, product: Launch, arch: str, ordinal: int) -> None:
        """Bind the kernels, building missing ones; see `ComplexLaunch`.

        Args:
            form: the problem and its copies, which `is_summed`.
        """
        super().__init__(ordinal)
        self._product = product
        self._copies = {}
        item_size = ITEM_SIZES[form.product.dtype]
        self._places = {
            name: self._take(copy.size * item_size) for name, copy in form.copies.items()
        }
        sums, problem = form.product.out, form.problem
        self._place = self._take(form.product.batch * sums.batch * item_size)
        if problem.k > 0:
            self._copies = {
                name: bind_copy(copy, arch, ordinal) for name, copy in form.copies.items()
            }
        adding = sum_problem(form)
        spec = sum_spec(adding)
        blocks = complex_sum.KERNEL.block_count(spec.config, adding)
        self._sum = launch_kernel(spec, adding, blocks, arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        places = {name: base + place for name, place in self._places.items()}
        calls = [
            _call(launch, source, places[name], 1.0)
            for source, (name, launch) in zip((a, b), self._copies.items(), strict=False)
        ]
        sums = base + self._place
        sources = places["a"], places.get("b", places["a"])
        calls.append(Call(self._product, (*sources, sums, sums, 1.0, 0.0)))
        factor = alpha.real, alpha.imag
        added = beta.real, beta.imag
        return [*calls, Call(self._sum, (sums, sums, c, out, *factor), added)]


def kernel_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels around real products, to build ahead of time, for float32 and float64."""
    specs: dict[KernelSpec, None] = {}
    for dtype, part in COMPLEX_PARTS.items():
        for layout in LAYOUTS if part in dtypes else ():
            real = contiguous_problem(part, 4, 4, 4, layout=layout)
            problem = replace(real, dtype=dtype, out_dtype=dtype)
            in_three = replace(problem, precision=THREE_PRODUCTS)
            whole = replace(problem, triangle="both")
            forms = [real_form(each, "") for each in (problem, in_three, whole)]
            for form in forms:
                specs |= dict.fromkeys(map(copy_spec, form.copies.values()))
            specs[copy_spec(scaling_copy(forms[0]))] = None
            specs |= dict.fromkeys(sum_spec(sum_problem(form)) for form in forms[1:])
    return list(specs)


def bind_copy(copy: ComplexCopy, arch: str, ordinal: int) -> Launch:
    """Bind the kernel of a copy, building it if need be."""
    spec = copy_spec(copy)
    blocks = complex_copy.KERNEL.block_count(spec.config, copy.problem)
    return launch_kernel(spec, copy.problem, blocks, arch, ordinal)


def sum_problem(form: ComplexForm) -> Problem:
    """Problem of the kernel that makes the result of three products, as `complex_sum` has it."""
    problem, product = form.problem, form.product
    numbers = [FusedOperand("number", product.dtype)] * 2
    several = 2 if problem.triangle else 3
    return Problem(
        dtype=product.dtype,
        m=problem.m,
        n=problem.n,
        k=1,
        batch=problem.batch,
        a=product.out._replace(batch=several * product.out.batch),
        b=Strides(product.out.batch, 0, 0),
        c=in_parts(problem.c),
        out=in_parts(problem.out),
        out_dtype=product.dtype,
        reads_c=problem.reads_c,
        triangle=problem.triangle,
        epilogue=Fusion((), tuple(numbers)),
    )


def sum_spec(adding: Problem) -> KernelSpec:
    """Spec of that kernel, for `sum_problem`."""
    kernel, name = complex_sum.KERNEL, complex_sum.__name__
    (config,) = kernel.simulator_configs if simulator_enabled() else kernel.configs
    variant = (adding.triangle,) if adding.triangle else ()
    return KernelSpec("complex_sum", name, config, adding.dtype, variant, adding.epilogue)


def complex_cublas(form: ComplexForm, ordinal: int) -> CublasLaunch:
    """Bind cuBLAS's own complex product, without copies.

    Raises:
        UnsupportedProblemError: cuBLAS cannot compute it.
    """
    problem = form.problem
    reason = supports(problem)
    if problem.triangle:
        reason = "its Hermitian product is another function"
    if problem.precision:
        reason = "it multiplies complex numbers in their own arithmetic alone"
    if reason:
        raise UnsupportedProblemError(
            f"gemm: implementation 'cublas' cannot compute this: {reason}."
        )
    return CublasLaunch(problem, ordinal, form.conjugates)


def copy_spec(copy: ComplexCopy) -> KernelSpec:
    """Spec of the kernel that makes a copy."""
    kernel = complex_copy.KERNEL
    (config,) = kernel.simulator_configs if simulator_enabled() else kernel.configs
    name = complex_copy.__name__
    return KernelSpec("complex_copy", name, config, copy.problem.dtype, copy.variant)


def _call(launch: Any, source: int, target: int, factor: complex) -> Call:
    return Call(launch, (source, source, target, target, factor.real, factor.imag))

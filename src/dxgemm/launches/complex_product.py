"""Launches of complex products: one kernel, or copies of operands and then a real product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from dxgemm.choice.cublas_limits import supports
from dxgemm.choice.implementation import COMMON_SHAPE, complex_sum_spec
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
    real_forms,
    result_in_parts,
    scaling_copy,
    with_parts_of_beta,
)
from dxgemm.problem.define import LAYOUTS, contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, THREE_PRODUCTS
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch, launch_kernel


class DirectLaunch:
    """Launch of a kernel of complex elements, which takes alpha and beta by their parts."""

    def __init__(self, product: Launch) -> None:
        self._product = product

    def __call__(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: complex,
        beta: complex,
        stream: int,
        operands: tuple[Any, ...] = (),
    ) -> None:
        operands += beta.real, beta.imag
        self._product(a, b, c, out, alpha.real, alpha.imag, stream, operands)

    def fixed(
        self,
        a: int,
        b: int,
        c: int,
        out: int,
        alpha: complex,
        beta: complex,
        operands: tuple[Any, ...] = (),
    ) -> Callable[[int], None]:
        operands += beta.real, beta.imag
        return self._product.fixed(a, b, c, out, alpha.real, alpha.imag, operands)


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
            c, beta = target, 1.0
        elif type(beta) is complex:
            calls.append(_call(self._scaling, c, out, beta))
            c, beta = out, 1.0
        alpha = 1.0 if type(alpha) is complex else alpha
        sources = places.get("a", a), places.get("b", b)
        calls.append(Call(self._product, (*sources, c, target, alpha, beta)))
        if "out" in self._copies:
            calls.append(_call(self._copies["out"], target, out, 1.0))
        return calls


class SummedLaunch(LaunchSeries):
    """Launch of real products, and of the kernel that makes the complex result of them."""

    def __init__(self, form: ComplexForm, product: Launch, arch: str, ordinal: int) -> None:
        """Bind the kernels, building missing ones; see `ComplexLaunch`."""
        super().__init__(ordinal)
        self._product = product
        self._copies = {name: bind_copy(copy, arch, ordinal) for name, copy in form.copies.items()}
        item_size = ITEM_SIZES[form.product.dtype]
        self._places = {
            name: self._take(copy.size * item_size) for name, copy in form.copies.items()
        }
        self._is_hermitian = form.problem.triangle != ""
        self._place = self._take(form.product.batch * form.product.out.batch * item_size)
        adding = sum_problem(form)
        spec = sum_spec(form)
        blocks = complex_sum.KERNEL.block_count(spec.config, adding)
        self._sum = launch_kernel(spec, adding, blocks, arch, ordinal)

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        arrays, sums = {"a": a, "b": b}, base + self._place
        sources = arrays | {name: base + place for name, place in self._places.items()}
        calls = [
            _call(launch, arrays[name], sources[name], 1.0) for name, launch in self._copies.items()
        ]
        if self._is_hermitian:
            sources["b"] = sources["a"]
        calls.append(Call(self._product, (*sources.values(), sums, sums, 1.0, 0.0)))
        factor, added = (alpha.real, alpha.imag), (beta.real, beta.imag)
        return [*calls, Call(self._sum, (sums, sums, c, out, *factor), (*operands, *added))]


def kernel_specs(dtypes: tuple[str, ...]) -> list[KernelSpec]:
    """List the kernels around real products, to build ahead of time, for float32 and float64."""
    wanted = [dtype for dtype, part in COMPLEX_PARTS.items() if part in dtypes]
    sizes = COMMON_SHAPE, (1, *COMMON_SHAPE[1:]), (1, 4096, 1), (8, 8, 8), (16, 16, 16)
    specs: dict[KernelSpec, None] = {}
    for dtype, size, layout in product(wanted, sizes, LAYOUTS):
        problem = contiguous_problem(dtype, *size, layout=layout)
        others = replace(problem, precision=THREE_PRODUCTS), replace(problem, triangle="both")
        for conjugates in ("", "a", "b", "ab"):
            forms = [*real_forms(problem, conjugates), *(real_form(o, conjugates) for o in others)]
            for form in forms:
                specs |= dict.fromkeys(map(copy_spec, [*form.copies.values(), scaling_copy(form)]))
                if form.products:
                    specs[sum_spec(form)] = None
    return list(specs)


def bind_copy(copy: ComplexCopy, arch: str, ordinal: int) -> Launch:
    """Bind the kernel of a copy, building it if need be."""
    spec = copy_spec(copy)
    blocks = complex_copy.KERNEL.block_count(spec.config, copy.problem)
    return launch_kernel(spec, copy.problem, blocks, arch, ordinal)


def sum_problem(form: ComplexForm) -> Problem:
    """Problem of the kernel that makes the result of products of parts, `complex_sum`."""
    problem, product = form.problem, form.product
    count = {"three": 3, "slices": 1}.get(form.products, 2)
    width = 2 if form.products in (*complex_sum.OF_PARTS, "slices") else 1
    return Problem(
        dtype=product.dtype,
        m=problem.m,
        n=problem.n,
        k=1,
        batch=problem.batch,
        a=Strides(count * form.part, product.out.row, width),
        b=Strides(form.part, 0, 0),
        c=in_parts(problem.c),
        out=result_in_parts(problem),
        out_dtype=product.dtype,
        reads_c=problem.reads_c,
        triangle=problem.triangle,
        epilogue=with_parts_of_beta(problem.epilogue, problem.dtype),
    )


def sum_spec(form: ComplexForm) -> KernelSpec:
    """Spec of that kernel."""
    problem = form.problem
    epilogue = with_parts_of_beta(problem.epilogue, problem.dtype)
    return complex_sum_spec(problem.dtype, form.products, epilogue)


def complex_cublas(form: ComplexForm, ordinal: int) -> CublasLaunch:
    """Bind cuBLAS's own complex product, without copies.

    Raises:
        UnsupportedProblemError: cuBLAS cannot compute it.
    """
    problem = form.problem
    reason = supports(problem)
    if problem.precision:
        reason = "it multiplies complex numbers in their own arithmetic alone"
    if problem.triangle:
        reason = "its complex gemm writes both triangles"
    if problem.epilogue:
        reason = "it applies no functions to complex numbers"
    if reason:
        raise UnsupportedProblemError(
            f"gemm: implementation 'cublas' cannot compute this: {reason}."
        )
    return CublasLaunch(problem, ordinal, form.conjugates)


def copy_spec(copy: ComplexCopy) -> KernelSpec:
    """Spec of the kernel that makes a copy."""
    kernel, name = complex_copy.KERNEL, complex_copy.__name__
    configs = kernel.simulator_configs if simulator_enabled() else kernel.configs
    config = complex_copy.choose_config(configs, copy.problem.n)
    return KernelSpec("complex_copy", name, config, copy.problem.dtype, copy.variant)


def _call(launch: Any, source: int, target: int, factor: complex) -> Call:
    return Call(launch, (source, source, target, target, factor.real, factor.imag))

"""Launches of complex products: copies of operands, then a real product."""

from __future__ import annotations

from typing import Any

from dxgemm.choice.cublas_limits import supports
from dxgemm.compiler import KernelSpec
from dxgemm.errors import UnsupportedProblemError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.kernels import complex_copy
from dxgemm.launches.cublas import CublasLaunch
from dxgemm.launches.series import Call, LaunchSeries
from dxgemm.problem.complex_form import ComplexCopy, ComplexForm, scaling_copy
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.runtime.binding import Launch, launch_kernel


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
        self._product, self._arch, self._form = product, arch, form
        self._reads_c = form.problem.reads_c
        self._copies = {name: self._bind(copy) for name, copy in form.copies.items()}
        item_size = ITEM_SIZES[form.product.dtype]
        self._places = {
            name: self._take(copy.size * item_size)
            for name, copy in form.copies.items()
            if name != "c"
        }
        self._conjugates_factor = "b" in form.copies and form.copies["b"].conjugates_factor
        self._scaling = None
        if self._reads_c and "c" not in form.copies:
            self._scaling = self._bind(scaling_copy(form))

    def calls(self, base: int, call: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Call]:
        a, b, c, out, alpha, beta = call
        places = {name: base + place for name, place in self._places.items()}
        target = places.get("out", out)
        calls = []
        if "a" in self._copies:
            calls.append(self._copy("a", a, places["a"], 1.0))
        if "b" in self._copies:
            factor = alpha if type(alpha) is complex else 1.0
            factor = factor.conjugate() if self._conjugates_factor else factor
            calls.append(self._copy("b", b, places["b"], factor))
        if "c" in self._copies:
            calls.append(self._copy("c", c, target, beta))
            beta = 1.0
        elif type(beta) is complex:
            calls.append(_call(self._scaling, out, out, beta))
            beta = 1.0
        alpha = 1.0 if type(alpha) is complex else alpha
        sources = places.get("a", a), places.get("b", b)
        calls.append(Call(self._product, (*sources, target, target, alpha, beta)))
        if "out" in self._copies:
            calls.append(self._copy("out", target, out, 1.0))
        return calls

    def _copy(self, name: str, source: int, target: int, factor: complex) -> Call:
        return _call(self._copies[name], source, target, factor)

    def _bind(self, copy: ComplexCopy) -> Launch:
        spec = copy_spec(copy)
        blocks = complex_copy.KERNEL.block_count(spec.config, copy.problem)
        return launch_kernel(spec, copy.problem, blocks, self._arch, self._ordinal)


def complex_cublas(form: ComplexForm, ordinal: int) -> CublasLaunch:
    """Bind cuBLAS's own complex product, without copies.

    Raises:
        UnsupportedProblemError: cuBLAS cannot compute it.
    """
    problem = form.problem
    reason = supports(problem)
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

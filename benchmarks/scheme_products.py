"""Products of parts as `emulated_float32` multiplies them, in every scheme, of CuPy's parts.

The library makes the parts of one scheme; the others are compared here, without their splitting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import cupy as cp

from dxgemm.choice.emulation_parts import buffers
from dxgemm.choice.kernel_files import file_spec
from dxgemm.compiler import KernelSpec
from dxgemm.handwritten.kernels import emulated_float32
from dxgemm.handwritten.parts.emulation import PADDING, SCHEMES, Scheme, parts_layout
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.layout import Strides
from dxgemm.runtime.binding import launch_kernel
from dxgemm.runtime.device import device_facts

TOP = 14  # exponent of the largest element of a scaled row, where there is float16
SIGNIFICANT_BITS = {"bf16": 8, "tf32": 11}
NEVER = 2**20  # steps, or k: more than there are


@dataclass(frozen=True)
class Study:
    """A scheme, and how often its sums are promoted: in steps of wgmma, and in k."""

    scheme: str
    promote: int
    section: int = 512

    def __str__(self) -> str:
        promote = "never" if self.promote == NEVER else f"every {self.promote}"
        section = "no sections" if self.section == NEVER else f"sections of {self.section}"
        return f"{self.scheme}, promoted {promote}, {section}"

    @property
    def config(self) -> emulated_float32.Config:
        parts = SCHEMES[self.scheme].parts
        return emulated_float32.Config(
            tile_m=128,
            tile_n=128,
            promote=self.promote,
            section=self.section,
            parts=parts,
        )


STUDIES = (
    *(Study("f16x3", promote) for promote in (1, 2, 4)),
    *(Study("f16x3", 1, section) for section in (256, 1024, NEVER)),
    *(Study("f16x3_one_sum", promote) for promote in (1, 4)),
    Study("f16x3_one_sum", NEVER, NEVER),
    Study("tf32x3", 2),
    Study("bf16x6", 1),
    Study("bf16x9", 1),
)


def scheme_problem(m: int, n: int, k: int) -> Any:
    """Problem of K-major a and b, whose epilogue takes factors and the validity flag."""
    problem = contiguous_problem("float32", m, n, k, precision="emulated")
    epilogue = Fusion((), buffers("float32", "float32", "int32"))
    return replace(problem, b=Strides(0, 1, k), epilogue=epilogue)


def scheme_spec(study: Study, m: int, n: int, k: int) -> KernelSpec:
    problem = scheme_problem(m, n, k)
    return file_spec(emulated_float32, problem, (study.scheme, "k", "k"), study.config)


class SchemeProduct:
    """One product, to be computed many times; its parts are made once."""

    def __init__(self, study: Study, a: Any, b: Any, out: Any) -> None:
        """Build the kernel if need be, and split the operands.

        Args:
            study: scheme and promotion to compute with.
            a: (m, k) float32.
            b: (k, n) float32.
            out: (m, n) float32, row-major.
        """
        (m, k), (_, n) = a.shape, b.shape
        self._study, config = study, study.config
        problem, spec = scheme_problem(m, n, k), scheme_spec(study, m, n, k)
        device = device_facts(a.device.id)
        launch = launch_kernel(
            spec,
            problem,
            emulated_float32.KERNEL.grid(config, problem, device.sm_count),
            device.arch,
            a.device.id,
            emulated_float32.KERNEL.tensor_maps(config, problem, *spec.variant),
        )
        scheme, flag = SCHEMES[study.scheme], cp.zeros(1, "int32")
        (a_parts, a_factors), (b_parts, b_factors) = (_split(x, scheme) for x in (a, b.T))
        self._arrays = a_parts, b_parts, a_factors, b_factors, flag, out
        given = (x for array in self._arrays[2:5] for x in (array.data.ptr, array.size))
        pointers = a_parts.data.ptr, b_parts.data.ptr, out.data.ptr, out.data.ptr
        self._run = launch.fixed((*pointers, 1.0, 0.0, *given))

    def __call__(self) -> None:
        self._run(0)

    def explain(self) -> SimpleNamespace:
        """Name the implementation and the config, like `dxgemm.Plan.explain`."""
        choice = SimpleNamespace(implementation="emulated_float32", config=self._study.config)
        return SimpleNamespace(choice=choice)


def scheme_product(study: Study) -> Callable[[Any, Any], SchemeProduct]:
    """Make a variant of a scheme."""
    return lambda case, x: SchemeProduct(study, x.a, x.b, x.out)


def _split(x: Any, scheme: Scheme) -> tuple[Any, Any]:
    """(parts, rows, items of a row) as the kernel reads them, and the factor of each row."""
    rows, k = x.shape
    layout = parts_layout(scheme, "k", rows, k)
    factors = cp.ones(-(-rows // PADDING) * PADDING, "float32")
    rest = x.astype("float32")
    if scheme.kind == "f16":
        largest = abs(x).max(axis=1)
        exponents = cp.where(largest > 0, cp.frexp(largest)[1] - 1, 0)
        rest = cp.ldexp(rest, (TOP - exponents)[:, None])
        factors[:rows] = cp.ldexp(cp.float32(1), exponents - TOP)
    item = "uint16" if scheme.item_bytes == 2 else "uint32"
    parts = cp.zeros((scheme.parts, rows, layout.row_items), item)
    for part in parts:
        if scheme.kind == "f16":
            held = rest.astype("float16")
            part[:, :k] = held.view("uint16")
        else:
            held = _rounded(rest, SIGNIFICANT_BITS[scheme.kind])
            bits = held.view("uint32")
            part[:, :k] = bits >> 16 if scheme.kind == "bf16" else bits
        rest = (rest - held.astype("float32")) * cp.float32(2.0**scheme.shift)
    return parts, factors


def _rounded(x: Any, significant_bits: int) -> Any:
    """float32 with fewer significant bits, to nearest even."""
    dropped = 24 - significant_bits
    bits = cp.ascontiguousarray(x).view("uint32")
    half = (1 << (dropped - 1)) - 1
    carried = bits + cp.uint32(half) + (bits >> cp.uint32(dropped) & cp.uint32(1))
    return (carried & cp.uint32(0xFFFFFFFF >> dropped << dropped)).view("float32")

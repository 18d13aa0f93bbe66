"""Implementations: what each computes, where it runs, and the kernels that it is compiled to.

Kernel files are imported when first needed, numba never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from itertools import product
from typing import Any, ClassVar

from dxgemm.choice import cublas_limits, emulation
from dxgemm.compiler import (
    KernelRecord,
    KernelSpec,
    compute_capability,
    find_kernel,
    pipeline_faults,
)
from dxgemm.gpu.facts import SIMULATED_DEVICE, DeviceFacts
from dxgemm.gpu.occupancy import sm_limits
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.kernel import Kernel, Reductions, never
from dxgemm.handwritten.parts.operands import BYTES, FLOAT8
from dxgemm.problem.complex_form import direct_form
from dxgemm.problem.define import LAYOUTS, contiguous_problem
from dxgemm.problem.dtypes import (
    ITEM_SIZES,
    PRECISIONS,
    result_dtypes,
    unit_dtype,
)
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.layout import MAX_ALIGNMENT
from dxgemm.problem.problem import Problem, sliced_problem

CLUSTER_CAPABILITY = 90  # least compute capability, times ten, with thread-block clusters

# Largest number of split-K slices.
MOST_SLICES = 128

COMMON_SHAPE, ODD_SHAPE = (4096, 4096, 4096), (4095, 4095, 4095)
# Each of m, n and k is a multiple of 16 or odd, or some are 1, and n is above or below m.
MIXED_SHAPES = (
    *product((2047, 2048), (4095, 4096), (4095, 4096)),
    *product((4095, 4096), (2047, 2048), (4095, 4096)),
    *product((1,), (1, 4095, 4096), (1, 4095, 4096)),
    *product((4095, 4096), (1,), (4095, 4096)),
    *product((4095, 4096), (4095, 4096), (1,)),
)

# Instructions of tensor cores, and their arithmetic by the dtype of a and b.
MMA_SYNC, WGMMA = "mma.sync", "wgmma"
TENSOR = {name: name for name in ("float16", "bfloat16", "float64")}
TENSOR |= {"float32": "tf32"} | dict.fromkeys(BYTES, "int8") | dict.fromkeys(FLOAT8, "float8")

# Architectures whose tensor cores reach their peak by other instructions, but for float64; and the
# share of it that `mma.sync` reaches: measured for TF32 on an H200, assumed for Blackwell.
FASTER_THAN_MMA_SYNC, MMA_SYNC_SHARE = ("sm_90", "sm_10"), 0.63

_SIMULATOR = "this is numba's simulator"


class Role(Enum):
    """Role of an implementation in the automatic choice."""

    CANDIDATE = "considered by the automatic choice"
    RUNG = "a rung of the ladder that later ones surpass where they run: used only when named"
    LIBRARY = "over a library's device functions, which own kernels surpass: used only when named"
    BASELINE = "a baseline: used only when named"


def _no_kernel(*what: Any, **more: Any) -> Any:
    raise TypeError("a library has no kernel to make")


# Declaration of a library: it has no configs, and does not tell what it launches.
LIBRARY = Kernel(
    _no_kernel, configs=(None,), dtypes=(), block_count=lambda config, problem: 0, commutes=never
)


@dataclass(frozen=True, eq=False)
class Implementation:
    """Registered kernel, or library, that computes GEMMs; objects are compared by identity.

    Attributes:
        name: name that `implementation=` takes.
        summary: one line for tables.
        role: part that it has in the automatic choice.
        tensor: instruction by which it multiplies on tensor cores; "" if it does outside of them.
        candidate_before: compute capability, times ten, before which a rung is a candidate too, for
            want of the instructions of later ones, which the simulator lacks as well.
        rung: number on the ladder of docs/ladder.md; None if it is no rung.
        stand_in: kernel whose measurements stand in for those that it lacks; "" for none.
        needs: precision that its products are permitted by, or the begin of its name, by the dtype
            of a and b; of other dtypes it computes the own arithmetic.
    """

    name: str
    summary: str
    role: Role = Role.CANDIDATE
    tensor: str = ""
    candidate_before: int = 0
    rung: int | None = None
    stand_in: str = ""
    needs: Mapping[str, str] = field(default_factory=dict, hash=False)

    # Arithmetic of tensor cores by the dtype of a and b, as `DeviceFacts.tensor_tflops` names it.
    units: ClassVar[Mapping[str, str]] = TENSOR

    @property
    def kernel(self) -> Kernel:
        """Declaration of the kernel."""
        return LIBRARY

    @property
    def is_own(self) -> bool:
        """True for dxgemm's own kernels, False for a baseline."""
        return self.role is not Role.BASELINE

    def is_automatic(self, arch: str | None = None) -> bool:
        """True if the automatic choice considers this implementation."""
        stands_in = arch == SIMULATED_DEVICE.arch and self.candidate_before > 0
        is_before_others = stands_in or is_before(arch, self.candidate_before)
        return self.role is Role.CANDIDATE or is_before_others

    def peak_tflops(self, dtype: str, device: DeviceFacts) -> float:
        """Peak TFLOP/s of the unit of a GPU that multiplies operands of a dtype."""
        unit = self.units.get(dtype, "") if self.tensor else ""
        peak = device.tensor_tflops.get(unit, device.peak_tflops[unit_dtype(dtype)])
        has_faster = unit not in ("", "float64") and device.arch.startswith(FASTER_THAN_MMA_SYNC)
        return peak * MMA_SYNC_SHARE if self.tensor == MMA_SYNC and has_faster else peak

    def is_modular(self, dtype: str) -> bool:
        """True if it multiplies residues: one product for each modulus."""
        return dtype == "float64" and self.units[dtype] == "int8"

    def order_of_sums(self, config: Any) -> Hashable:
        """Key that configs share, of any kernel, which give an element the same bits."""
        name = self.kernel.order_of_sums if config.cluster == 1 else ""
        return name or (self.name, config)

    def computed(self, problem: Problem) -> Problem:
        """Problem that the kernel computes: with aligned copies of the operands that need one."""
        return problem.aligned if self.kernel.copies_operands else problem

    def supports(self, problem: Problem) -> str | None:
        """Reason why this implementation cannot compute the problem; None if it can."""
        raise NotImplementedError

    @property
    def refuses(self) -> Callable[[Problem], str | None]:
        """Faster `supports`, for a dtype that has configs and for results that every kernel stores.

        Results of pairs of columns and of int8 are not. Nor are inner functions taken by all.
        """
        return self.supports

    def runs_on(self, arch: str) -> str | None:
        """Reason why this implementation cannot run on an architecture; None if it can."""
        return None

    def build_fault(self, arch: str) -> str | None:
        """Reason why the installed toolkit may not build its kernels; None if it may."""
        return None

    def configs(self, dtype: str | None = None, arch: str | None = None) -> tuple[Any, ...]:
        """All configs, or those for a dtype, largest tile first.

        The simulator has configs of its own; without an architecture they are the result if it is
        enabled. The result is (None,) for an implementation without configs.
        """
        raise NotImplementedError

    def fuses_reduction(self, problem: Problem) -> bool:
        """True if its kernels can fuse the problem's reduction."""
        from dxgemm.handwritten.parts.reduction import FEW_VALUES

        reduction = problem.reduction
        if reduction is None or reduction.axis == 0 or reduction.is_stored:
            return self.kernel.reductions is Reductions.ALL
        if reduction.count > FEW_VALUES:  # from shared memory alone
            return self.kernel.reductions is Reductions.ALL
        return self.kernel.reductions is not Reductions.NONE

    def partial_results(self, config: Any, problem: Problem) -> int:
        """Number of partial results that a fused reduction leaves per row, or column."""
        from dxgemm.handwritten.parts.reduction import slot_count

        tile, sizes = self.kernel.result_tile(config, problem), (problem.m, problem.n)
        width = MAX_ALIGNMENT // ITEM_SIZES[problem.out_dtype]
        partial_results: int = slot_count(config, tile, problem.reduction, sizes, width)
        return partial_results

    def takes_triangles(self, problem: Problem) -> bool:
        """True if its kernels compute a symmetric result by half its tiles."""
        return self.kernel.takes_triangles and self.supports(problem) is None

    def fallback(self, problem: Problem, config: Any = None) -> str | None:
        """Kernel that takes over if the operands fail the validity check; None without a check."""
        return None

    def block_count(self, config: Any, problem: Problem, sm_count: int) -> int:
        """Thread blocks of a launch, or of each split-K slice; 0 if it does not tell."""
        return self.kernel.grid(config, self.computed(problem), sm_count)

    def tile_count(self, config: Any, problem: Problem) -> int:
        """Tiles of the result, more than blocks for a persistent kernel; 0 if it does not tell."""
        count = self.kernel.tile_count or self.kernel.block_count
        return count(config, self.computed(problem))

    def built_record(self, config: Any, problem: Problem, arch: str) -> KernelRecord | None:
        """Record of the kernel if it is in memory or on disk; None if it is not built."""
        return None


def is_before(arch: str | None, capability: int) -> bool:
    """True if an architecture of real GPUs has less than a compute capability, times ten."""
    return arch not in (None, SIMULATED_DEVICE.arch) and compute_capability(arch) < capability


@dataclass(frozen=True, eq=False)
class KernelFile(Implementation):
    """Implementation by a kernel file of one of dxgemm's packages."""

    package: ClassVar[str]

    @property
    def module(self) -> str:
        """Import path of the kernel file."""
        return f"{self.package}.{self.name}"

    @cached_property
    def kernel(self) -> Kernel:
        kernel: Kernel = import_module(self.module).KERNEL
        return kernel

    def supports(self, problem: Problem) -> str | None:
        if problem.dtype not in self.dtypes:
            *others, last = (dtype for dtype in self.dtypes if " " not in dtype)
            listed = f"{', '.join(others)} and {last}" if others else last
            return f"it computes {listed}, not {problem.dtype}"
        if problem.takes_pairs and not self.kernel.takes_pairs:
            return "its threads do not store pairs of columns, which the epilogue takes"
        if problem.inner is not None and not self.kernel.takes_inner:
            return "its instructions multiply and add, and compute no inner function"
        if problem.is_quantised and not self.kernel.quantises:
            return "its threads do not store int8 or float8, which the results become"
        if problem.is_widened and not self.kernel.widens:
            return (
                f"its threads store what {problem.dtype} gives by default, not {problem.out_dtype}"
            )
        if problem.has_block_scales and not self.kernel.takes_block_scales:
            return "its sums are not scaled by blocks of k"
        if problem.modulus and not self.kernel.takes_modulus:
            return "it does not compute modulo a number"
        if problem.clears and not self.kernel.clears_triangles:
            return "it multiplies what stands beside the diagonal of an operand"
        if problem.mask_block and not self.kernel.takes_masks:
            return "its blocks do not skip the dead blocks of a mask"
        if problem.is_empty and problem.reduction is None:
            return None  # nothing is launched: its operands may have any layout
        return self.refuses(problem)

    @property
    def refuses(self) -> Callable[[Problem], str | None]:
        if not self.kernel.copies_operands:
            return self.kernel.supports
        return lambda problem: self.kernel.supports(problem.aligned)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of a and b that the kernel computes."""
        return self.kernel.dtypes

    def runs_on(self, arch: str) -> str | None:
        if arch == SIMULATED_DEVICE.arch:
            is_able = bool(self.kernel.simulator_configs)
            return None if is_able else f"its PTX instructions need a GPU; {_SIMULATOR}"
        capability = compute_capability(arch)
        minimum, only = self.kernel.minimum_arch, self.kernel.only_arch
        if capability >= minimum and only in (None, capability):
            return None
        needed = f"{only / 10}" if only else f"{minimum / 10} or later"
        return f"it needs compute capability {needed}, not {capability / 10}"

    def configs(self, dtype: str | None = None, arch: str | None = None) -> tuple[Any, ...]:
        kernel = self.kernel
        is_simulated = simulator_enabled() if arch is None else arch == SIMULATED_DEVICE.arch
        configs = kernel.simulator_configs if is_simulated else kernel.configs
        if dtype is None:
            return configs
        if dtype not in self.dtypes:
            return ()
        return tuple(config for config in configs if config.takes(dtype))

    def spec(
        self,
        config: Any,
        dtype: str,
        variant: tuple[str, ...] = (),
        epilogue: Fusion | None = None,
    ) -> KernelSpec:
        return KernelSpec(self.name, self.module, config, dtype, variant, epilogue)

    def spec_for(self, config: Any, problem: Problem) -> KernelSpec:
        """Spec of the kernel that computes a problem."""
        variant = self.kernel.variant(config, self.computed(problem))
        return self.spec(config, problem.dtype, variant, problem.epilogue)

    def common_problems(self, dtype: str) -> tuple[list[Problem], list[Problem]]:
        """Problems to build kernels for ahead of time, of common layouts: whole ones, and sliced.

        The second ones are for configs whose blocks do not split k themselves.
        """
        problems = [*common_problems(dtype)]
        sliced = [sliced_problem(problem, 2) for problem in problems if self.kernel.slices_k]
        return problems, sliced

    def built_record(self, config: Any, problem: Problem, arch: str) -> KernelRecord | None:
        kernel = find_kernel(self.spec_for(config, problem), arch)
        return kernel.record if kernel else None


def misfit(config: Any, dtype: str, arch: str, smem_bytes: int) -> str | None:
    """Reason why a GPU whose blocks have so much shared memory cannot launch a config, or None."""
    needed = config.smem_bytes(dtype)
    if needed > smem_bytes:
        return (
            f"a block of {config} takes {needed} bytes of shared memory, more than the "
            f"{smem_bytes} that it can have on {arch}"
        )
    if config.cluster > 1 and is_before(arch, CLUSTER_CAPABILITY):
        return f"{config} needs the thread-block clusters of compute capability 9.0, not {arch}"
    return None


def launchable(specs: Iterable[KernelSpec], arch: str) -> list[KernelSpec]:
    """Specs of the kernels that GPUs of an architecture can launch."""
    limits = sm_limits(arch)
    if limits is None:
        return list(specs)
    most = limits.smem_bytes_per_block
    return [spec for spec in specs if misfit(spec.config, spec.dtype, arch, most) is None]


class Handwritten(KernelFile):
    """Handwritten production kernel."""

    package = "dxgemm.handwritten.kernels"


class Rung(Handwritten):
    """Handwritten kernel of the ladder that is there to be read."""

    package = "dxgemm.handwritten.ladder"


class ComplexProduct(Handwritten):
    """Handwritten kernel file that multiplies complex elements."""

    units: ClassVar = {"complex128": "float64"}

    def common_problems(self, dtype: str) -> tuple[list[Problem], list[Problem]]:
        problems, sliced = super().common_problems(dtype)
        return [direct_form(problem, "").product for problem in problems], sliced


class EmulatedProduct(Handwritten):
    """Kernel file of an emulated product, which multiplies the parts that other kernels make."""

    units: ClassVar = {"float32": "float16", "float64": "int8"}

    def spec_for(self, config: Any, problem: Problem) -> KernelSpec:
        return emulation.product_spec(import_module(self.module), config, problem)

    def fallback(self, problem: Problem, config: Any = None) -> str | None:
        if problem.dtype not in self.dtypes:
            return None
        name = emulation.NATIVE[problem.dtype].__name__.rpartition(".")[2]
        return f"{name} {emulation.native_config(problem, config)}, decided on the GPU"

    def partial_results(self, config: Any, problem: Problem) -> int:
        return emulation.partial_results(config, problem)


class Pipelined(KernelFile):
    """Kernel file on top of device functions of cuBLASDx."""

    package = "dxgemm.cublasdx"
    units: ClassVar = {name: name for name in TENSOR if name != "float32"}

    def build_fault(self, arch: str) -> str | None:
        is_simulated = arch == SIMULATED_DEVICE.arch
        return None if is_simulated else "; ".join(pipeline_faults()) or None


class TmaPipelined(Pipelined):
    """Kernel file on top of those that take TMA and wgmma, which multiplies float32 as TF32."""

    units = TENSOR


@dataclass(frozen=True, eq=False)
class Cublas(Implementation):
    """NVIDIA's cuBLAS, called through CuPy."""

    def supports(self, problem: Problem) -> str | None:
        if problem.epilogue is not None:
            return "cuBLAS fuses no function written in Python"
        if problem.modulus:
            return "cuBLAS does not compute modulo a number"
        if problem.clears:
            return "cuBLAS multiplies what stands beside the diagonal of an operand"
        return cublas_limits.supports(problem)

    def runs_on(self, arch: str) -> str | None:
        return f"cuBLAS needs a GPU; {_SIMULATOR}" if arch == SIMULATED_DEVICE.arch else None

    def configs(self, dtype: str | None = None, arch: str | None = None) -> tuple[Any, ...]:
        return (None,)


@cache
def common_problems(dtype: str) -> tuple[Problem, ...]:
    """Large contiguous problems of all layouts, result dtypes and precisions.

    Contiguous operands of other sizes need the same kernels. The first problem is aligned, the last
    one is not.
    """
    cases = [(COMMON_SHAPE, "row_row"), *product(MIXED_SHAPES, LAYOUTS), (ODD_SHAPE, "row_row")]
    kinds = product(result_dtypes(dtype), (None, *PRECISIONS.get(dtype, ())))
    return tuple(
        contiguous_problem(dtype, *shape, layout=layout, out_dtype=out_dtype, precision=precision)
        for out_dtype, precision in kinds
        for shape, layout in cases
    )

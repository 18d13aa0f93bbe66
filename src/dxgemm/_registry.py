"""Every implementation by name. Kernel files are imported when first needed, numba never."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import product
from typing import Any, ClassVar

from dxgemm._errors import UnknownImplementationError
from dxgemm._fusion import Fusion
from dxgemm._gpu import simulator_enabled
from dxgemm._problem import (
    ITEM_SIZES,
    MAX_ALIGNMENT,
    PRECISIONS,
    RESULT_DTYPES,
    Problem,
    contiguous_problem,
    scalar_dtype,
    sliced_problem,
)
from dxgemm.compiler import (
    KernelRecord,
    KernelSpec,
    compute_capability,
    find_kernel,
)
from dxgemm.runtime.binding import Launch, launch_kernel
from dxgemm.runtime.device import DeviceFacts, device_facts

# Of the 1020 that a thread's registers hold: a larger accumulator would not stay in them.
MOST_ACCUMULATOR_BYTES = 576


# What adds the sums of slices of k, and of how many at most.
MOST_SLICES = 128
ADDER = "dxgemm.handwritten.add_slices"

COMMON_SHAPE, ODD_SHAPE = (4096, 4096, 4096), (4095, 4095, 4095)

# The units that multiply: those of tensor cores by the dtype of a and b.
TENSOR = {name: name for name in ("float16", "bfloat16", "float64", "int8")} | {"float32": "tf32"}


@dataclass(frozen=True, eq=False)
class Implementation(ABC):
    """One way to compute a GEMM. One object each, which is compared as such.

    Attributes:
        name: what `implementation=` takes.
        summary: one line for tables.
        is_own: False for libraries that are registered as a baseline; the automatic choice is among
            dxgemm's own kernels.
        automatic_for: dtypes for which the automatic choice considers it and `dxgemm tune` measures
            it; None for all. For others it is surpassed, as most of the ladder is by its last step.
        multiplies: by dtype of a and b, the entry of `DeviceFacts.tensor_tflops` for what its
            tensor cores multiply; without dtypes that it computes outside tensor cores.
        rung: its number on the ladder of docs/ladder.md.
    """

    name: str
    summary: str
    is_own: bool = True
    automatic_for: tuple[str, ...] | None = None
    multiplies: Mapping[str, str] = field(default_factory=dict, hash=False)
    rung: int | None = None

    def is_automatic(self, dtype: str) -> bool:
        """Whether the automatic choice for a dtype considers it."""
        return self.is_own and (self.automatic_for is None or dtype in self.automatic_for)

    def peak_tflops(self, dtype: str, device: DeviceFacts) -> float:
        """TFLOP/s of the unit of a GPU that multiplies operands of a dtype."""
        unit = self.multiplies.get(dtype, "")
        return device.tensor_tflops.get(unit, device.peak_tflops[scalar_dtype(dtype)])

    def is_modular(self, dtype: str) -> bool:
        """Whether it multiplies residues: one product for each modulus."""
        return dtype == "float64" and self.multiplies.get(dtype) == "int8"

    @abstractmethod
    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this implementation cannot compute the problem."""

    @property
    def refuses(self) -> Callable[[Problem], str | None]:
        """`supports`, for problems of a dtype that has configs: it takes less time."""
        return self.supports

    def runs_on(self, arch: str) -> str | None:
        """None, or the reason why this implementation cannot run on an architecture."""
        return None

    @abstractmethod
    def configs(self, dtype: str | None = None) -> tuple[Any, ...]:
        """The configs there are, or those for a dtype, largest tile first.

        (None,) if there is nothing to choose.
        """

    def slow_build(self, config: Any, problem: Problem, arch: str) -> KernelSpec | None:
        """The kernel that `bind` would have to build first, if that takes long."""
        return None

    def fuses_reduction(self, problem: Problem) -> bool:
        """Whether its kernels can reduce the tiles they compute as the problem wants it."""
        return False

    def partial_results(self, config: Any, problem: Problem) -> int:
        """How many its kernel leaves of each row, or column, of the result that it reduces."""
        from dxgemm.handwritten.reduction import slot_count

        tile, sizes = self.result_tile(config, problem), (problem.m, problem.n)
        width = MAX_ALIGNMENT // ITEM_SIZES[problem.out_dtype]
        partial_results: int = slot_count(config, tile, problem.reduction, sizes, width)
        return partial_results

    @property
    def slices_k(self) -> bool:
        """Whether its kernels compute the sums of slices of k."""
        return False

    def result_tile(self, config: Any, problem: Problem) -> tuple[int, int]:
        """Rows and columns of the result that a block's tile has."""
        return config.tile_m, config.tile_n

    @abstractmethod
    def bind(self, problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
        """Make everything ready for one problem, building its kernel if need be."""

    def fallback(self, problem: Problem, config: Any = None) -> str | None:
        """What computes the problem instead where the operands' values ask for it."""
        return None

    def accuracy(self, problem: Problem) -> str | None:
        """What of the operands is multiplied, and the bound on the error; None for all of it."""
        return None

    def block_count(self, config: Any, problem: Problem, sm_count: int) -> int:
        """Thread blocks of a launch, or for each slice of k; 0 where it does not tell."""
        return 0

    def tile_count(self, config: Any, problem: Problem) -> int:
        """Tiles of the result; more than blocks where these compute one after the other."""
        return 0

    def built_record(self, config: Any, problem: Problem, arch: str) -> KernelRecord | None:
        """The record of a kernel that is already on disk."""
        return None


@dataclass(frozen=True, eq=False)
class KernelFile(Implementation):
    """A kernel file of one of dxgemm's packages."""

    package: ClassVar[str]

    @property
    def module(self) -> str:
        """Import path of the kernel file."""
        return f"{self.package}.{self.name}"

    @cached_property
    def _kernel_file(self) -> Any:
        return import_module(self.module)

    def supports(self, problem: Problem) -> str | None:
        file = self._kernel_file
        if simulator_enabled() and not file.SIMULATOR_CONFIGS:
            return "its PTX instructions need a GPU; this is numba's simulator"
        if problem.dtype not in self.dtypes:
            return f"it computes {' and '.join(self.dtypes)}, not {problem.dtype}"
        return self.refuses(problem)

    @property
    def refuses(self) -> Callable[[Problem], str | None]:
        supports: Callable[[Problem], str | None] = self._kernel_file.supports
        return supports

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of a and b it computes."""
        dtypes: tuple[str, ...] = getattr(self._kernel_file, "DTYPES", ("float32", "float64"))
        return dtypes

    def runs_on(self, arch: str) -> str | None:
        if simulator_enabled():
            return None
        capability = compute_capability(arch)
        minimum = getattr(self._kernel_file, "MINIMUM_ARCH", 0)
        only = getattr(self._kernel_file, "ONLY_ARCH", capability)
        if capability >= minimum and capability == only:
            return None
        needed = f"{minimum} or later" if minimum else f"{only}"
        return f"it needs compute capability {needed} (times 10), not {capability}"

    def configs(self, dtype: str | None = None) -> tuple[Any, ...]:
        file = self._kernel_file
        configs: tuple[Any, ...] = file.SIMULATOR_CONFIGS if simulator_enabled() else file.CONFIGS
        if dtype is None:
            return configs
        if dtype not in self.dtypes:
            return ()
        return tuple(c for c in configs if c.accumulator_bytes(dtype) <= MOST_ACCUMULATOR_BYTES)

    def spec(
        self,
        config: Any,
        dtype: str,
        variant: tuple[str, ...] = (),
        epilogue: Fusion | None = None,
    ) -> KernelSpec:
        return KernelSpec(self.name, self.module, config, dtype, variant, epilogue)

    def spec_for(self, config: Any, problem: Problem) -> KernelSpec:
        """The kernel that computes a problem."""
        choose_variant = getattr(self._kernel_file, "variant", None)
        variant = choose_variant(config, problem) if choose_variant else ()
        return self.spec(config, problem.dtype, variant, problem.epilogue)

    def all_specs(self, config: Any, problem: Problem) -> list[KernelSpec]:
        """Every kernel that a launch needs."""
        return [self.spec_for(config, problem)]

    def common_specs(self, dtypes: tuple[str, ...]) -> list[KernelSpec]:
        """The kernels to build ahead of time: each config for the common layouts."""
        specs = {
            self.spec_for(config, problem): None
            for dtype in self.dtypes
            if dtype in dtypes
            for config in self.configs(dtype)
            for problem in self._common_problems(config, dtype)
            if self.supports(problem) is None
        }
        return list(specs)

    def _common_problems(self, config: Any, dtype: str) -> list[Problem]:
        only_shape = getattr(config, "only_shape", None)
        if only_shape is not None:
            return [contiguous_problem(dtype, *only_shape)]
        problems = common_problems(dtype)
        if self.slices_k and config.split_k == 1:
            problems += [sliced_problem(problem, 2) for problem in problems]
        return problems

    def block_count(self, config: Any, problem: Problem, sm_count: int) -> int:
        blocks: int = self._kernel_file.block_count(config, problem)
        return min(blocks, sm_count) if self._is_persistent else blocks

    def tile_count(self, config: Any, problem: Problem) -> int:
        file = self._kernel_file
        tiles: int = getattr(file, "tile_count", file.block_count)(config, problem)
        return tiles

    @cached_property
    def _is_persistent(self) -> bool:
        """Whether each SM has one block at most, which computes tile after tile."""
        is_persistent: bool = getattr(self._kernel_file, "PERSISTENT", False)
        return is_persistent

    def fuses_reduction(self, problem: Problem) -> bool:
        reduction = problem.reduction
        if reduction is None or reduction.axis == 0 or reduction.is_stored:
            return self._fuses_reductions
        return self._fuses_row_reductions

    @cached_property
    def _fuses_reductions(self) -> bool:
        fuses: bool = getattr(self._kernel_file, "FUSES_REDUCTIONS", False)
        return fuses

    @cached_property
    def _fuses_row_reductions(self) -> bool:
        fuses: bool = getattr(self._kernel_file, "FUSES_ROW_REDUCTIONS", self._fuses_reductions)
        return fuses

    @property
    def slices_k(self) -> bool:
        slices: bool = getattr(self._kernel_file, "SLICES_K", False)
        return slices

    def result_tile(self, config: Any, problem: Problem) -> tuple[int, int]:
        find = getattr(self._kernel_file, "result_tile", super().result_tile)
        tile: tuple[int, int] = find(config, problem)
        return tile

    def built_record(self, config: Any, problem: Problem, arch: str) -> KernelRecord | None:
        kernel = find_kernel(self.spec_for(config, problem), arch)
        return kernel.record if kernel else None

    def bind(self, problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
        describe_maps = getattr(self._kernel_file, "tensor_maps", None)
        maps = describe_maps(config, problem) if describe_maps else ()
        blocks = self.block_count(config, problem, device_facts(ordinal).sm_count)
        return launch_kernel(self.spec_for(config, problem), problem, blocks, arch, ordinal, maps)


def adding_spec(problem: Problem, slices: int) -> KernelSpec:
    """The kernel that adds the sums of so many slices of a problem's k."""
    file = import_module(ADDER)
    elements = problem.batch * problem.m * problem.n
    config = file.choose_config(file.CONFIGS, elements, slices)
    return KernelSpec("add_slices", ADDER, config, problem.dtype, (), problem.epilogue)


class Handwritten(KernelFile):
    """A kernel file of the ladder."""

    package = "dxgemm.handwritten"


@dataclass(frozen=True, eq=False)
class SplitProduct(Handwritten):
    """The kernel file that multiplies the parts of operands; other kernels make these.

    Attributes:
        series: the module that launches them all.
    """

    series: str = "dxgemm._split"

    @property
    def _series(self) -> Any:
        return import_module(self.series)

    def spec_for(self, config: Any, problem: Problem) -> KernelSpec:
        spec: KernelSpec = self._series.product_spec(config, problem)
        return spec

    def all_specs(self, config: Any, problem: Problem) -> list[KernelSpec]:
        return [self.spec_for(config, problem), *self._series.other_specs(problem)]

    def common_specs(self, dtypes: tuple[str, ...]) -> list[KernelSpec]:
        specs = dict.fromkeys(super().common_specs(dtypes))
        for problem in (
            p for dtype in self.dtypes if dtype in dtypes for p in common_problems(dtype)
        ):
            if self.supports(problem) is None:
                specs |= dict.fromkeys(self._series.other_specs(problem))
        return list(specs)

    def fallback(self, problem: Problem, config: Any = None) -> str | None:
        if problem.dtype not in self.dtypes:
            return None
        split = import_module("dxgemm._split")
        name = split.NATIVE[problem.dtype].__name__.rpartition(".")[2]
        return f"{name} {split.native_config(problem, config)}, decided on the GPU"

    def partial_results(self, config: Any, problem: Problem) -> int:
        partial_results: int = self._series.partial_results(config, problem)
        return partial_results

    def accuracy(self, problem: Problem) -> str | None:
        stated: str = self._kernel_file.accuracy(problem)
        return stated

    def bind(self, problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
        launch: Launch = self._series.bind(problem, config, arch, ordinal)
        return launch


class Pipelined(KernelFile):
    """A kernel file over device functions of cuBLASDx."""

    package = "dxgemm.cublasdx"

    def slow_build(self, config: Any, problem: Problem, arch: str) -> KernelSpec | None:
        if simulator_enabled():
            return None
        spec = self.spec_for(config, problem)
        return None if find_kernel(spec, arch) else spec


@dataclass(frozen=True, eq=False)
class Cublas(Implementation):
    """NVIDIA's cuBLAS, called through CuPy."""

    @property
    def _binding(self) -> Any:
        return import_module("dxgemm._cublas")

    def supports(self, problem: Problem) -> str | None:
        if problem.epilogue is not None:
            return "cuBLAS fuses no function written in Python"
        reason: str | None = self._binding.supports(problem)
        return reason

    def configs(self, dtype: str | None = None) -> tuple[Any, ...]:
        return (None,)

    def bind(self, problem: Problem, config: Any, arch: str, ordinal: int) -> Launch:
        launch: Launch = self._binding.CublasLaunch(problem, ordinal)
        return launch


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Handwritten("naive", "one thread an element, down the columns", rung=1),
    Handwritten("coalesced", "one thread an element, along the rows", rung=2),
    Handwritten("shared_tile", "shared-memory tile a block", automatic_for=(), rung=3),
    Handwritten("thread_tile_1d", "column of elements a thread", automatic_for=(), rung=4),
    Handwritten(
        "thread_tile_2d", "tile of elements a thread, in registers", automatic_for=(), rung=5
    ),
    Handwritten("vectorized", "128-bit accesses", automatic_for=(), rung=6),
    Handwritten("conflict_free", "padded or swizzled shared memory", automatic_for=(), rung=7),
    Handwritten("warp_tile", "tile of elements a warp", automatic_for=(), rung=8),
    Handwritten("double_buffer", "next tile fetched meanwhile", automatic_for=(), rung=9),
    Handwritten("async_copy", "cp.async in several stages", automatic_for=(), rung=10),
    Handwritten("ping_pong", "fragments read one k ahead", automatic_for=(), rung=11),
    Handwritten("tuned", "16 x 8 elements a thread, clusters that split k", rung=12),
    Handwritten("tensor_core", "float64 on tensor cores, mma.sync", multiplies=TENSOR, rung=13),
    Handwritten(
        "tensor_core_tf32",
        "float32 as TF32 on tensor cores, mma.sync",
        multiplies=TENSOR,
        rung=13,
    ),
    Handwritten(
        "wgmma",
        "TMA and warpgroup multiplication of Hopper",
        multiplies=TENSOR,
        rung=14,
    ),
    Handwritten("small_batch", "several small matrices a block, each read at once"),
    Handwritten(
        "tensor_batch",
        "small float64 matrices on tensor cores, each read at once",
        multiplies=TENSOR,
    ),
    SplitProduct(
        "split_wgmma",
        "float32 as sums of float16 parts on Hopper's tensor cores",
        multiplies={"float32": "float16"},
    ),
    SplitProduct(
        "split_int8",
        "float64 as integers by their remainders on Hopper's tensor cores",
        multiplies={"float64": "int8"},
        series="dxgemm._split_int8",
    ),
    Handwritten("widening_tile", "half precision and int8 of any layout, widened for their sums"),
    Pipelined("block_batch", "cuBLASDx: a block a small matrix", automatic_for=("float32",)),
    Pipelined(
        "pipeline",
        "cuBLASDx: cp.async",
        automatic_for=("int8",),
        multiplies={"float64": "float64", "int8": "int8"},
    ),
    Pipelined(
        "pipeline_tma",
        "cuBLASDx: TMA and wgmma of Hopper",
        automatic_for=("int8",),
        multiplies=TENSOR,
    ),
    Cublas("cublas", "NVIDIA cuBLAS through CuPy, the baseline", is_own=False),
)

_by_name = {implementation.name: implementation for implementation in IMPLEMENTATIONS}


def find_implementation(name: str) -> Implementation:
    """The implementation of that name.

    Raises:
        UnknownImplementationError: there is none.
    """
    try:
        return _by_name[name]
    except (KeyError, TypeError):
        raise UnknownImplementationError(
            f"gemm: implementation {name!r} is unknown; there are {', '.join(_by_name)}."
        ) from None


def find_config(implementation: Implementation, dtype: str, text: str) -> Any:
    """The config that prints so; None if there is none any more."""
    return next((c for c in implementation.configs(dtype) if str(c) == text), None)


def common_problems(dtype: str) -> list[Problem]:
    """A large one for each common arrangement, result and precision; aligned, and of odd sizes."""
    problems = []
    for out_dtype, precision in product(RESULT_DTYPES[dtype], (None, *PRECISIONS.get(dtype, ()))):
        rows = contiguous_problem(dtype, *COMMON_SHAPE, out_dtype=out_dtype, precision=precision)
        problems += [
            rows,
            replace(rows, b=rows.b.transposed()),
            replace(rows, a=rows.a.transposed()),
            contiguous_problem(dtype, *ODD_SHAPE, out_dtype=out_dtype, precision=precision),
        ]
    return problems


def kernel_specs(
    dtypes: tuple[str, ...] = ("float32", "float64"),
    implementations: tuple[str, ...] | None = None,
    arch: str | None = None,
) -> list[KernelSpec]:
    """The kernels to build ahead of time, of the implementations named or of the automatic ones.

    With an architecture, of those that it runs.
    """
    kernel_files = [i for i in IMPLEMENTATIONS if isinstance(i, KernelFile)]
    if implementations is not None:
        named = [find_implementation(name) for name in implementations]
        kernel_files = [i for i in named if isinstance(i, KernelFile)]
    wanted = [
        (implementation, dtype)
        for implementation in kernel_files
        for dtype in dtypes
        if implementations is not None or implementation.is_automatic(dtype)
        if arch is None or implementation.runs_on(arch) is None
    ]
    specs = [spec for i, dtype in wanted for spec in i.common_specs((dtype,))]
    slicing = dict.fromkeys(dtype for i, dtype in wanted if i.slices_k and dtype in i.dtypes)
    for dtype in slicing:
        problem = contiguous_problem(dtype, 1, 1, 1)
        specs += dict.fromkeys(adding_spec(problem, slices) for slices in range(2, MOST_SLICES + 1))
    return list(dict.fromkeys(specs))  # one kernel judges the parts of float32 and of float64

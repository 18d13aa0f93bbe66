"""Legality: which problems a kernel can compute, and the reasons why not others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from dxgemm.choice.implementation import MOST_SLICES, Implementation, misfit
from dxgemm.choice.registry import IMPLEMENTATIONS
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.parts.k_ranges import FULL
from dxgemm.problem.dtypes import ITEM_SIZES
from dxgemm.problem.problem import Problem, changed, sliced_problem, stored_problem

FEWEST_SLICED_TILES = 4  # k tiles in a split-K slice


# Totals of several numbers per thread: so many bytes, which leave registers to the functions, or so
# many totals, the fewest of all configs.
MOST_TOTAL_BYTES, FEW_TOTALS = 256, 16


class Candidate(NamedTuple):
    """Kernel with a config, for one problem.

    Attributes:
        implementation: the kernel.
        config: one of its configs; None if it has none.
        slices: split-K slices, whose sums another kernel adds, from a workspace.
        stores_matrix: True if a reduction is unfused: the matrix is stored, and another kernel
            reduces it.
        triangle: how a symmetric result is computed: "whole" like any other, "half" of its tiles,
            or "folded": whole in a workspace, of which another kernel writes the triangle.
        us: predicted time in microseconds, including the kernels after it; None if unknown.
        note: reason for the choice, beside the predicted time or in place of it.
    """

    implementation: Implementation
    config: Any
    slices: int = 1
    stores_matrix: bool = False
    us: float | None = None
    note: str = ""
    triangle: str = "whole"

    @property
    def reason(self) -> str:
        """Reason for the choice: the note, or else the predicted time."""
        if self.note or self.us is None:
            return self.note
        return f"predicted {self.us:.3g} us" + (
            f", k in {self.slices} slices" if self.slices > 1 else ""
        )

    def part_of(self, problem: Problem) -> Problem:
        """Part of a problem that the kernel of the product computes."""
        part = stored_problem(problem) if self.stores_matrix else problem
        if problem.k_ranges and not self.skips_zeros(problem):
            part = changed(part, k_ranges="")
        if problem.triangle:
            part = triangular(part, self.triangle)
        return sliced_problem(part, self.slices) if self.uses_workspace else part

    @property
    def uses_workspace(self) -> bool:
        """True if sums are left in a workspace, from which another kernel makes the result."""
        return self.slices > 1 or self.triangle == "folded"

    def skips_zeros(self, problem: Problem) -> bool:
        """True if the kernel skips the zeros of triangular operands."""
        return skips_zeros(self.implementation, problem) and self.slices == 1

    def __str__(self) -> str:
        config = f" {self.config}" if self.config is not None else ""
        slices = f" in {self.slices} slices" if self.slices > 1 else ""
        half = " for half the tiles" if self.triangle == "half" else ""
        return f"{self.implementation.name}{config}{slices}{half}"


def triangular(problem: Problem, path: str) -> Problem:
    """Part of a problem with a symmetric result that a kernel computes by a path.

    Args:
        problem: the problem.
        path: one of `triangle_paths`.
    """
    triangle = problem.triangle if path == "half" else ""
    triangle = "both" if triangle == "either" else triangle
    return changed(problem, triangle=triangle, adds_transpose=False)


def skips_zeros(implementation: Implementation, problem: Problem) -> bool:
    """True if a kernel, without slices of k, skips the zeros of triangular operands."""
    return problem.k_ranges != "" and implementation.kernel.takes_k_ranges


def refusal(implementation: Implementation, problem: Problem, device: DeviceFacts) -> str | None:
    """Reason why a kernel cannot compute a problem on a device; None if it can."""
    if not reduction_paths(implementation, problem):
        return "its kernels reduce nothing"
    if not triangle_paths(implementation, problem):
        return "no other kernel makes a symmetric result of its integers or inner function"
    part = _part(implementation, problem)
    reason = implementation.supports(part) or implementation.runs_on(device.arch)
    reason = reason or implementation.build_fault(device.arch)
    if reason is not None or not implementation.is_own:
        return reason
    configs = implementation.configs(problem.dtype, device.arch)
    if not configs or fitting_configs(implementation, problem.dtype, device):
        return None
    return misfit(configs[-1], problem.dtype, device.arch, device.smem_bytes_per_block)


def fitting_configs(
    implementation: Implementation, dtype: str, device: DeviceFacts
) -> tuple[Any, ...]:
    """Configs of one of dxgemm's own kernels that a device can launch, largest tile first."""
    arch, most = device.arch, device.smem_bytes_per_block
    configs = implementation.configs(dtype, arch)
    return tuple(config for config in configs if misfit(config, dtype, arch, most) is None)


def fits_config(implementation: Implementation, config: Any, problem: Problem) -> bool:
    """True if a config suits the problem's mask, inner function and scales, if there are any."""
    return config_fault(implementation, config, problem) is None


def config_fault(implementation: Implementation, config: Any, problem: Problem) -> str | None:
    """Reason why a config does not suit the mask, the inner function or the scales; or None."""
    if not implementation.kernel.fits(config, problem):
        return "has tiles that suit neither its layouts nor its scales of blocks"
    parts, block = problem.inner_parts, problem.mask_block
    if parts > 1:
        if config.cluster > 1:
            return "adds up sums over a cluster, and no totals of several numbers"
        total_bytes = config.accumulator_bytes(problem.dtype)
        is_large = total_bytes > FEW_TOTALS * ITEM_SIZES[problem.scalar_dtype]
        if is_large and parts * total_bytes > MOST_TOTAL_BYTES:
            return f"has too large thread tiles for totals of {parts} numbers"
    if not block:
        return None
    # Blocks of a cluster that have a tile each would wait for one that has returned.
    shares_tile = config.cluster == getattr(config, "split_k", 1)
    tile = implementation.kernel.result_tile(config, problem)
    if shares_tile and not any(block % extent for extent in tile):
        return None
    return f"has tiles that reach beyond a block of the mask, {block} x {block}"


def legal_kernels(problem: Problem, device: DeviceFacts) -> list[Implementation]:
    """Kernels that the automatic choice considers for a problem: those without an `exclusion`."""
    if problem.triangle:
        kernels = legal_kernels(triangular(problem, "whole"), device)
        return [kernel for kernel in kernels if triangle_paths(kernel, problem)]
    considered = considered_kernels(problem, device)
    if problem.reduction is None:
        return [kernel for kernel, refuses in considered.items() if refuses(problem) is None]
    return [
        kernel
        for kernel, refuses in considered.items()
        if reduction_paths(kernel, problem) and refuses(_part(kernel, problem)) is None
    ]


def is_plain(problem: Problem) -> bool:
    """True if every kernel of the dtype stores such a result, of sums of products."""
    if problem.clears:
        return False
    if problem.epilogue is None and not problem.is_integer:
        return not problem.is_quantised
    is_stored = not (problem.is_quantised or problem.is_widened or problem.takes_pairs)
    is_summed = not (problem.modulus or problem.has_block_scales or problem.inner)
    return is_stored and is_summed and not problem.mask_block


Considered = Mapping[Implementation, Callable[[Problem], str | None]]


def considered_kernels(problem: Problem, device: DeviceFacts) -> Considered:
    """Kernels of a problem's dtype and precision, and functions that say why they refuse it."""
    precision = None if problem.is_integer else problem.precision
    considered = _automatic_kernels(problem.dtype, precision, device)
    if is_plain(problem):
        return considered
    return {kernel: kernel.supports for kernel in considered}


@cache
def _automatic_kernels(dtype: str, precision: str | None, device: DeviceFacts) -> Considered:
    """Kernels that have configs for a dtype and run on a device, with their `refuses`.

    The list is cached because every new shape needs it.
    """
    return {
        i: i.refuses
        for i in IMPLEMENTATIONS
        if i.is_own and i.is_automatic(device.arch) and i.runs_on(device.arch) is None
        if fitting_configs(i, dtype, device)
        if (precision or "").startswith(i.needs.get(dtype, ""))
    }


def _part(implementation: Implementation, problem: Problem) -> Problem:
    """Part of a problem that a kernel has to support."""
    if problem.triangle:
        return triangular(problem, "whole")
    if problem.reduction is None or not reduction_paths(implementation, problem)[-1]:
        return problem
    return stored_problem(problem)


def exclusion(implementation: Implementation, problem: Problem, device: DeviceFacts) -> str | None:
    """Reason why the automatic choice leaves a kernel out; None if it does not."""
    if not implementation.is_automatic(device.arch):
        return implementation.role.value
    return refusal(implementation, problem, device)


def is_cleared(problem: Problem, device: DeviceFacts, asked: Any) -> bool:
    """True if a kernel puts zeros beside the diagonals of a problem's operands, where they lie.

    Args:
        problem: the problem, with `clears`.
        device: the GPU.
        asked: None for the automatic choice, or the implementation as `gemm` takes it.
    """
    aligned = zip(problem.clears.split(), problem.aligned_operands, strict=True)
    if any(triangle != FULL and copy is not None for triangle, copy in aligned):
        return False  # a copy can be clean
    name, *how = asked if isinstance(asked, tuple) else (asked,)
    return how[1:] in ([], [1]) and any(
        kernel.kernel.clears_triangles
        and name in (None, kernel.name)
        and exclusion(kernel, problem, device) is None
        for kernel in IMPLEMENTATIONS
        if kernel.is_own
    )


def reduction_paths(implementation: Implementation, problem: Problem) -> tuple[bool, ...]:
    """Paths of a reduction, as values of `stores_matrix`: False is fused, True is unfused."""
    if problem.reduction is None:
        return (False,)
    paths: tuple[bool, ...] = ()
    if problem.must_fuse is not False and implementation.fuses_reduction(problem):
        paths += (False,)
    return paths if problem.must_fuse else (*paths, True)


def triangle_paths(implementation: Implementation, problem: Problem) -> tuple[str, ...]:
    """Paths to a symmetric result, see `Candidate.triangle`; ("whole",) for any other result.

    A whole product is symmetric bit for bit where both factors of each sum are taken alike, and
    neither c nor an epilogue is rounded with it. A transpose is added where sums are folded. A
    product that `gemm` recognises has the bits of a whole one: half is mirrored only where that
    makes no difference.
    """
    if not problem.triangle:
        return ("whole",)
    if problem.adds_transpose:
        return ("folded",) if is_foldable(problem) and not problem.modulus else ()
    commutes = implementation.kernel.commutes
    epilogue = problem.epilogue
    is_bare = not problem.reads_c and (epilogue is None or epilogue.is_stored_plainly)
    is_exact = problem.is_integer
    paths: tuple[str, ...] = ()
    if problem.triangle == "either" or (
        problem.triangle == "both" and (is_exact or (is_bare and commutes(problem)))
    ):
        paths += ("whole",)
    half = triangular(problem, "half")
    may_mirror = problem.triangle != "either" or commutes(problem)
    if may_mirror and not problem.is_quantised and implementation.takes_triangles(half):
        paths += ("half",)
    if not paths and problem.inner is None and is_foldable(problem):
        paths += ("folded",)
    return paths


def is_sliceable(problem: Problem) -> bool:
    """True if another kernel can add the sums of split-K slices of a problem."""
    return not (problem.is_integer or problem.clears) and is_foldable(problem)


def is_foldable(problem: Problem) -> bool:
    """True if another kernel can make the result of sums in a workspace."""
    return problem.epilogue is None or not (
        problem.reduction is not None
        or problem.takes_pairs
        or problem.mask_block
        or problem.has_block_scales
        or problem.inner_parts > 1
    )


def can_slice(implementation: Implementation, config: Any, problem: Problem, slices: int) -> bool:
    """True if a kernel with this config can compute a problem in so many split-K slices."""
    return (
        implementation.kernel.slices_k
        and config.takes_slices
        and is_sliceable(problem)
        and slices <= min(-(-problem.k // config.tile_k), MOST_SLICES)
    )

"""Explanation of a call: the kernel that computes it and why, in the terms of a tutorial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dxgemm.call.complex_call import form_of_problem
from dxgemm.call.route import Route
from dxgemm.choice.batch_invariant import (
    BatchInvariant,
    for_any_rows,
    rank_for_any_rows,
    with_batch_invariance,
)
from dxgemm.choice.legality import Candidate
from dxgemm.choice.selection import Ranking, rank, speeds_from
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import named_in_errors
from dxgemm.gpu.cards import find_card
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.occupancy import occupancy, sm_limits
from dxgemm.gpu.roofline import (
    MEMORY_LATENCY_NS,
    Roofline,
    bytes_in_flight_needed,
    count_waves,
    tail_efficiency,
    tile_intensity,
)
from dxgemm.lower.complex_product import lower_complex
from dxgemm.lower.product import lower_candidate
from dxgemm.problem.complex_form import ComplexForm
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, step_flops
from dxgemm.problem.layout import MAX_ALIGNMENT
from dxgemm.problem.pieces import Piece, pieces_of
from dxgemm.problem.problem import Problem
from dxgemm.runtime.device import device_facts
from dxgemm.runtime.program import Program

# Ways to a symmetric result, by `Candidate.triangle`.
SYMMETRY = {
    "half": "b is a.T: tiles on one side of the diagonal are computed, and mirrored",
    "whole": "b is a.T; all tiles are computed",
    "folded": "b is a.T: all tiles are computed, and another kernel writes the triangles",
}
ADDED = "all tiles are computed, and another kernel adds the transpose and writes the triangles"


@dataclass(frozen=True)
class Explanation:
    """Explanation of how one GEMM is computed.

    Attributes:
        m, n, k, batch: sizes of the kernel's problem; m and n are exchanged if is_transposed.
        computed_as: one matrix of the rows, or columns, of a whole batch, or pieces; None if the
            matrices are computed as they are.
        dtype: dtype of a and b.
        out_dtype: dtype of c and out.
        precision: arithmetic that the call permits instead of the dtype's own; None for no other.
        epilogue: names of the functions that are applied to each element; None for no function.
        reduction: name of the reduction, and whether the kernel of the product computes it; None
            without a reduction.
        symmetry: how a symmetric result is computed; None if b is not known to be a.T.
        complex_form: form in which complex operands are computed; None for real operands.
        is_transposed: True if out.T = b.T @ a.T is computed, because out is column-major.
        arrangements: layouts of a, b, c and out as the kernel sees them: "row_major", "col_major"
            or "strided".
        alignments: bytes, the largest power of two up to 16 that divides the address of a and b.
        copied: names of host operands that are copied to the GPU or back.
        device: name of the GPU.
        is_named_gpu: True if the caller named the GPU. Then no GPU is asked, and all times are
            predicted.
        implementation, config: the kernel and the config that are chosen.
        rule: reason for the choice.
        slices: split-K slices, whose sums another kernel adds; 1 if k is whole.
        aligned: operands that are copied to aligned rows before they are multiplied.
        accuracy: rounding of the operands before they are multiplied, and the bound on the error;
            None if they are multiplied as they are and summed in the accumulator's dtype.
        fallback: kernel that takes over if the operands' values fail the validity check; None if
            there is no such check. `emulation_fallbacks` counts how often it took over.
        rejected: by name of every other implementation, the reason why it is not used.
        blocks, threads: grid size and block size of the launch; None if the implementation does
            not tell.
        blocks_per_sm: resident blocks per SM; None until the kernel is built.
        waves: waves in which the tiles of the result are computed; the last one counts as the
            fraction of it that is filled. None until the kernel is built.
        registers: registers per thread; None until the kernel is built.
        smem_bytes: shared memory per block; None until the kernel is built.
        gflops: floating-point operations, in 10**9.
        mbytes: fewest megabytes through device memory.
        roofline_us: the larger of compute_us and memory_us.
        bound: "compute" or "memory", whichever takes longer.
        is_simulated: True on numba's simulator, whose peaks mean nothing.
        sm_count: number of SMs of the GPU.
        peak_tflops: peak of the GPU for this arithmetic in TFLOP/s, tensor cores included.
        memory_gbytes_per_s: peak bandwidth of the GPU's memory in GB/s.
        compute_us, memory_us: time of the operations and of the bytes, at these peaks.
        intensity: FLOP per byte of device memory.
        ridge: intensity from which on arithmetic takes longer than memory on this GPU.
        tile_intensity: FLOP per byte that a block reads; None without tiles in shared memory.
        split_k: blocks of a cluster that share the k of a tile.
        tiles: tiles of the result, times split_k; None if the implementation does not tell.
        tail_efficiency: waves over waves rounded up: 1 if the last wave is full.
        warps_per_sm: resident warps per SM.
        most_warps_per_sm: limit on the resident warps of an SM.
        occupancy_limits: resources that stop an SM from holding more blocks.
        bytes_in_flight: bytes that the pipelines of the blocks on an SM load while they multiply;
            None without a pipeline, and until the kernel is built.
        bytes_in_flight_needed: bytes in flight per SM that use the full memory bandwidth.
        predicted_us: predicted time of the launch; None if it is not known.
        candidates: best config of each kernel that could compute the problem, by name, with its
            predicted time; the shortest first, which is the choice.
        speeds: source of the speeds that the predictions are made from.
        steps: kernels of the call in order, with the operands and buffers that they use; empty for
            a product in pieces.
    """

    m: int
    n: int
    k: int
    batch: int
    computed_as: str | None
    dtype: str
    out_dtype: str
    precision: str | None
    epilogue: str | None
    reduction: str | None
    symmetry: str | None
    complex_form: str | None
    is_transposed: bool
    arrangements: dict[str, str]
    alignments: dict[str, int]
    copied: tuple[str, ...]
    device: str
    is_named_gpu: bool
    implementation: str
    config: str | None
    slices: int
    rule: str
    aligned: tuple[str, ...]
    accuracy: str | None
    fallback: str | None
    rejected: dict[str, str]
    blocks: int | None
    threads: int | None
    blocks_per_sm: int | None
    waves: float | None
    registers: int | None
    smem_bytes: int | None
    gflops: float
    mbytes: float
    roofline_us: float
    bound: str
    is_simulated: bool
    sm_count: int
    peak_tflops: float
    memory_gbytes_per_s: float
    compute_us: float
    memory_us: float
    intensity: float
    ridge: float
    tile_intensity: float | None
    split_k: int
    tiles: int | None
    tail_efficiency: float | None
    warps_per_sm: int | None
    most_warps_per_sm: int | None
    occupancy_limits: tuple[str, ...]
    bytes_in_flight: int | None
    bytes_in_flight_needed: float
    predicted_us: float | None
    candidates: tuple[tuple[str, float], ...]
    speeds: str | None
    steps: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dictionary, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        arrangements = ", ".join(
            f"{name} {kind}{self._misalignment(name)}" for name, kind in self.arrangements.items()
        )
        dtype = self.dtype
        if self.out_dtype != dtype:
            dtype += f" to {self.out_dtype}"
        if self.precision is not None:
            dtype += f", {self.precision} permitted,"
        lines = [
            f"gemm {batch}{self.m} x {self.n} x {self.k} {dtype} on {self.device}",
            f"  operands        {arrangements}",
        ]
        if self.is_named_gpu:
            lines.insert(1, "  gpu             facts from its datasheet; all times are predicted")
        if self.computed_as is not None:
            lines.append(f"  computed as     {self.computed_as}")
        if self.epilogue is not None:
            lines.append(f"  epilogue        {self.epilogue}")
        if self.reduction is not None:
            lines.append(f"  reduction       {self.reduction}")
        if self.symmetry is not None:
            lines.append(f"  symmetric       {self.symmetry}")
        if self.complex_form is not None:
            lines.append(f"  complex         {self.complex_form}")
        if self.is_transposed:
            lines.append("                  computed as out.T = b.T @ a.T: out is column-major")
        if self.copied:
            lines.append(f"                  copied between host and GPU: {', '.join(self.copied)}")
        config = f" {self.config}" if self.config else ""
        lines.append(f"  implementation  {self.implementation}{config}: {self.rule}")
        if self.aligned:
            lines.append(f"                  from aligned copies of {' and '.join(self.aligned)}")
        if self.accuracy is not None:
            lines.append(f"                  {self.accuracy}")
        if self.fallback is not None:
            lines.append(f"                  if the validity check fails: {self.fallback}")
        if len(self.steps) > 1:
            lines.append(f"  kernels         {self.steps[0]}")
            lines += [f"                  {step}" for step in self.steps[1:]]
        lines += self._candidate_lines()
        lines += [f"  {label:<16}{text}" for label, text in self._work_lines()]
        lines += [f"  {label:<16}{text}" for label, text in self._launch_lines()]
        return "\n".join(lines)

    def _candidate_lines(self) -> list[str]:
        """List the candidates with their times, and the other kernels with their refusals."""
        lines = []
        if len(self.candidates) > 1:
            width = max(len(name) for name, _ in self.candidates)
            lines.append(f"  candidates      {'predicted, us':>{width}}")
            lines += [f"    {name:<{width}}  {us:>12.4g}" for name, us in self.candidates]
        if self.speeds is not None:
            lines.append(f"  speeds          {self.speeds}")
        shown = {name.partition(" ")[0] for name, _ in self.candidates}
        others = {name: why for name, why in self.rejected.items() if name not in shown}
        width = max(map(len, others), default=0)
        return lines + [f"    not {name:<{width}}  {reason}" for name, reason in others.items()]

    def _work_lines(self) -> list[tuple[str, str]]:
        """Describe the cost of the problem on this GPU, whichever kernel computes it."""
        is_complex = self.dtype in COMPLEX_PARTS
        each = "four products of parts" if is_complex else "a multiplication and an addition"
        lines = [
            ("work", f"{figure(self.gflops)} GFLOP: {each} a step"),
            ("memory", f"{figure(self.mbytes)} MB at least: operands read, results written, once"),
        ]
        if self.is_simulated:
            return [
                *lines,
                ("intensity", f"{figure(self.intensity)} FLOP a byte of memory"),
                ("roofline", "none: the simulator is no GPU"),
            ]
        return [
            *lines,
            (
                "intensity",
                f"{figure(self.intensity)} FLOP a byte of memory; from {figure(self.ridge)} on, "
                "arithmetic takes longer than memory",
            ),
            (
                "roofline",
                f"{figure(self.compute_us)} us at {figure(self.peak_tflops)} TFLOP/s, "
                f"{figure(self.memory_us)} us at {figure(self.memory_gbytes_per_s)} GB/s: at least "
                f"{figure(self.roofline_us)} us ({self.bound} bound)",
            ),
        ]

    def _launch_lines(self) -> list[tuple[str, str]]:
        """Describe the launch of the chosen kernel."""
        lines = []
        if self.blocks is not None:
            lines.append(("grid", f"{self.blocks} blocks of {self.threads} threads"))
        if self.tile_intensity is not None:
            lines.append(
                (
                    "tile",
                    f"{figure(self.tile_intensity)} FLOP a byte that a full tile reads, most of it "
                    "from the L2 cache",
                )
            )
        if self.split_k > 1:
            lines.append(("split k", f"{self.split_k} blocks share the k of a tile, and add up"))
        if self.registers is None:
            lines.append(("kernel", "not built yet"))
        else:
            lines.append(
                (
                    "kernel",
                    f"{self.registers} registers a thread, "
                    f"{self.smem_bytes} bytes of shared memory a block",
                )
            )
        if self.warps_per_sm is not None:
            lines.append(
                (
                    "occupancy",
                    f"{self.warps_per_sm} of {self.most_warps_per_sm} warps on an SM, as "
                    f"{_count(self.blocks_per_sm, 'block')}; more would not fit its "
                    f"{' and '.join(self.occupancy_limits)}",
                )
            )
        if self.waves is not None:
            lines.append(("waves", f"{self.waves:.2f}: {self._waves_text()}"))
        if self.bytes_in_flight is not None:
            lines.append(
                (
                    "in flight",
                    f"{self.bytes_in_flight} bytes on their way to an SM; full bandwidth over "
                    f"{MEMORY_LATENCY_NS:.0f} ns of latency takes "
                    f"{self.bytes_in_flight_needed:.0f}",
                )
            )
        if self.predicted_us is not None:
            lines.append(("predicted", f"{self.against_roofline(self.predicted_us)}, by the model"))
        return lines

    def _waves_text(self) -> str:
        if self.waves is None or self.waves <= 1:
            used = min(self.tiles or 0, self.sm_count)
            return f"all blocks run at once, on {used} of {self.sm_count} SMs"
        return (
            f"{self.tiles} tiles in {math.ceil(self.waves)} waves; the last one takes as long as "
            f"a full one, so that {self.tail_efficiency:.0%} of the time is used"
        )

    def against_roofline(self, time_us: float) -> str:
        """Format a time of this product, with the fraction of the roofline that it reaches."""
        return f"{figure(time_us)} us, {self.roofline_us / time_us:.0%} of the roofline"

    def _misalignment(self, name: str) -> str:
        alignment = self.alignments.get(name, MAX_ALIGNMENT)
        return f" at {alignment} bytes" if alignment < MAX_ALIGNMENT else ""


def figure(value: float) -> str:
    """Format a number with three significant digits, or as a whole number from 1000 on."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def explain_route(route: Route) -> Explanation:
    """Explain a call whose operands are known."""
    return _explain(
        route.on_device.problem,
        route.device,
        route.ranking,
        route.candidate,
        route.host_operands,
        route.epilogue,
        computed_as=_flattening_text(route),
        complex_form=route.on_device.complex_form,
        program=None if route.on_device.pieces else route.on_device.program,
    )


def _symmetry_text(problem: Problem, candidate: Candidate) -> str | None:
    """Describe how a symmetric result is computed; None for another result."""
    if problem.adds_transpose:
        return ADDED
    return SYMMETRY[candidate.triangle] if problem.triangle else None


def _flattening_text(route: Route) -> str | None:
    """Describe a batch that is computed as one matrix, or a product that is computed in pieces."""
    if route.on_device.pieces:
        return _pieces_text(route.on_device.pieces)
    problem, (*batch, m, _) = route.on_device.asked, route.shape
    if not batch or batch[0] == problem.batch:
        return None
    rows, cols = (problem.n, problem.m) if problem.is_transposed else (problem.m, problem.n)
    shared, lines = ("b", f"{rows} rows") if rows > m else ("a", f"{cols} columns")
    return f"{batch[0]} matrices that share {shared}: one product of {lines}"


def _pieces_text(pieces: Sequence[Piece]) -> str | None:
    return f"{len(pieces)} pieces; this is the first" if pieces else None


def _reduction_text(
    epilogue: BoundEpilogue | None, problem: Problem, candidate: Candidate
) -> str | None:
    if epilogue is None or epilogue.reduction is None:
        return None
    if problem.reduction is not None and not candidate.stores_matrix:
        where = "fused: each block reduces its tile, a second kernel merges what they leave"
    else:
        where = "unfused: the matrix is stored, and reduced by another kernel"
    return f"{epilogue.reduction}, {where}"


@named_in_errors("explain_shape")
def explain_shape(
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    *,
    batch: int = 1,
    layout: str = "row_row",
    out_dtype: str | None = None,
    implementation: Any = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    gpu: str | None = None,
) -> Explanation:
    """Explain what `gemm` would do with (m, k) and (k, n) operands and a row-major result.

    Args:
        m, n, k: sizes.
        dtype: dtype of the operands; complex ones are not conjugated.
        batch: number of products.
        layout: orders of a and b: "row_row", "row_col" (as x @ weight.T has it), "col_row" or
            "col_col".
        out_dtype: dtype of the result; None for that of a new result.
        implementation, precision, batch_invariant: as `gemm` takes them.
        gpu: name of a card, such as "RTX 4090", which need not be at hand; None for the first GPU.

    Raises:
        GpuUnavailableError: no GPU, the simulator is not enabled, and no card is named.
        UnknownGpuError: the facts of the named card are not known.
        LayoutError: the layout is unknown.
        ShapeError: a size is no integer, or negative.
        DtypeError, PrecisionError, UnknownImplementationError, UnsupportedProblemError: under the
            same conditions as in `gemm`.
    """
    problem = contiguous_problem(
        dtype, m, n, k, batch, layout=layout, out_dtype=out_dtype, precision=precision
    )
    asked = with_batch_invariance(implementation, batch_invariant)
    is_invariant = isinstance(asked, BatchInvariant)
    if is_invariant:
        problem = for_any_rows(problem)
    device = device_facts(0) if gpu is None else find_card(gpu).facts
    pieces = pieces_of(problem)
    if pieces:
        problem = pieces[0].problem
    form = None
    if dtype in COMPLEX_PARTS:
        form = form_of_problem(problem, "", asked, device)
        problem = form.product
    ranking = (rank_for_any_rows if is_invariant else rank)(problem, device, implementation)
    chosen, is_named_gpu = ranking.candidates[0], gpu is not None
    program = None
    if not (pieces or problem.is_empty):
        program = lower_candidate(problem, chosen, device)
        program = lower_complex(form, program) if form else program
    return _explain(
        problem,
        device,
        ranking,
        chosen,
        (),
        is_named_gpu=is_named_gpu,
        computed_as=_pieces_text(pieces),
        complex_form=form,
        program=program,
    )


def _explain(
    problem: Problem,
    device: DeviceFacts,
    ranking: Ranking,
    candidate: Candidate,
    copied: tuple[str, ...],
    epilogue: BoundEpilogue | None = None,
    is_named_gpu: bool = False,
    computed_as: str | None = None,
    complex_form: ComplexForm | None = None,
    program: Program | None = None,
) -> Explanation:
    implementation, config = candidate.implementation, candidate.config
    part = candidate.part_of(problem)
    blocks = implementation.block_count(config, part, device.sm_count) * candidate.slices or None
    record = None
    if not device.is_simulated:
        record = implementation.built_record(config, part, device.arch)
    tiles = implementation.tile_count(config, part) or None
    resident = waves = None
    limits = sm_limits(device.arch)
    if record is not None and limits is not None:
        resident = occupancy(limits, record.threads, record.registers, record.smem_bytes)
    if resident is not None and blocks is not None and tiles is not None:
        waves = count_waves(tiles, blocks, device.sm_count * resident.blocks)
    blocks_on_sm = 0
    if resident is not None and blocks is not None:
        blocks_on_sm = min(resident.blocks, -(-blocks // device.sm_count))
    own_tflops = device.peak_tflops[problem.scalar_dtype]
    roofline = Roofline(
        flops=problem.flops,
        bytes_moved=problem.bytes_moved,
        peak_tflops=device.tensor_tflops.get(problem.arithmetic, own_tflops),
        memory_gbytes_per_s=device.memory_gbytes_per_s,
    )
    shares_tiles = config is not None and config.smem_bytes(problem.dtype) > 0
    tile = implementation.result_tile(config, part) if shares_tiles else None
    return Explanation(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        computed_as=computed_as,
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
        precision=problem.precision,
        epilogue=str(epilogue) if epilogue else None,
        reduction=_reduction_text(epilogue, problem, candidate),
        symmetry=_symmetry_text(problem, candidate),
        complex_form=None if complex_form is None else str(complex_form),
        is_transposed=problem.is_transposed,
        arrangements={name: getattr(problem, name).arrangement for name in ("a", "b", "c", "out")},
        alignments={"a": problem.a_alignment, "b": problem.b_alignment},
        copied=copied,
        device=device.name,
        is_named_gpu=is_named_gpu,
        implementation=implementation.name,
        config=str(config) if config is not None else None,
        slices=candidate.slices,
        rule=candidate.reason,
        aligned=tuple(implementation.computed(part).padded),
        accuracy=implementation.accuracy(part),
        fallback=implementation.fallback(part, candidate.config),
        rejected=ranking.rejected,
        blocks=blocks,
        threads=getattr(config, "threads", None),
        blocks_per_sm=resident.blocks if resident else None,
        waves=waves,
        registers=record.registers if record else None,
        smem_bytes=record.smem_bytes if record else None,
        gflops=problem.flops / 1e9,
        mbytes=problem.bytes_moved / 1e6,
        roofline_us=roofline.time_us,
        bound=roofline.bound,
        is_simulated=device.is_simulated,
        sm_count=device.sm_count,
        peak_tflops=roofline.peak_tflops,
        memory_gbytes_per_s=roofline.memory_gbytes_per_s,
        compute_us=roofline.compute_us,
        memory_us=roofline.memory_us,
        intensity=roofline.intensity,
        ridge=roofline.ridge,
        tile_intensity=_tile_intensity(tile, problem.dtype) if tile else None,
        split_k=getattr(config, "split_k", 1),
        tiles=tiles,
        tail_efficiency=tail_efficiency(waves) if waves is not None else None,
        warps_per_sm=resident.resident_warps if resident else None,
        most_warps_per_sm=resident.most_warps if resident else None,
        occupancy_limits=resident.limiters if resident else (),
        bytes_in_flight=_bytes_in_flight(config, problem.dtype, blocks_on_sm),
        bytes_in_flight_needed=bytes_in_flight_needed(device.memory_gbytes_per_s, device.sm_count),
        predicted_us=None if device.is_simulated else candidate.us,
        candidates=tuple(
            (str(other), other.us)
            for other in ranking.candidates
            if other.us is not None and not device.is_simulated
        ),
        speeds=None if device.is_simulated else speeds_from(device, problem.dtype),
        steps=tuple(map(str, program.steps)) if program else (),
    )


def _tile_intensity(tile: tuple[int, int], dtype: str) -> float:
    """FLOP per byte of a full tile: complex elements have more for each pair."""
    return tile_intensity(*tile, ITEM_SIZES[dtype]) * step_flops(dtype) / 2


def _bytes_in_flight(config: Any, dtype: str, blocks_on_sm: int) -> int | None:
    """Bytes of all stages but the one being multiplied, of all blocks on an SM."""
    if not (blocks_on_sm and hasattr(config, "stages")):
        return None
    stage = config.stage_bytes  # a property where all dtypes have the same
    stage_bytes: int = stage(dtype) if callable(stage) else stage
    return blocks_on_sm * (config.stages - 1) * stage_bytes

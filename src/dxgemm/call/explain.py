"""Explanations of calls, and of products whose sizes alone are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dxgemm.call.bind import Computation, Decision, computation_of_reals, lower
from dxgemm.call.complex_call import form_of_problem
from dxgemm.call.explanation import Choice, Explanation, Grid, Prediction, Work
from dxgemm.call.route import Route
from dxgemm.choice.batch_invariant import (
    BatchInvariant,
    for_any_rows,
    rank_asked,
    with_batch_invariance,
)
from dxgemm.choice.byte_products import predicted_us
from dxgemm.choice.legality import Candidate
from dxgemm.choice.problem_facts import filled_share
from dxgemm.choice.selection import Ranking, speeds_from
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import named_in_errors
from dxgemm.gpu.cards import find_card
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.occupancy import occupancy, sm_limits
from dxgemm.gpu.roofline import Roofline, bytes_in_flight_needed, count_waves, tile_intensity
from dxgemm.handwritten.parts.operands import BYTES
from dxgemm.problem.arguments import Kernel, Precision, with_modulus
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, dtype_name, step_flops, unit_dtype
from dxgemm.problem.pieces import Piece, pieces_of
from dxgemm.problem.problem import Problem
from dxgemm.runtime.device import device_facts

# Ways to a symmetric result, by `Candidate.triangle`.
SYMMETRY = {
    "half": "b is a.T: tiles on one side of the diagonal are computed, and mirrored",
    "whole": "b is a.T; all tiles are computed",
    "folded": "b is a.T: all tiles are computed, and another kernel writes the triangles",
}
ADDED = "all tiles are computed, and another kernel adds the transpose and writes the triangles"


def explain_route(route: Route) -> Explanation:
    """Explain a call whose operands are known."""
    on_device = route.on_device or route
    resolved = on_device.resolved
    decision = on_device.decision
    if resolved.pieces:
        decision = decision._replace(program=None)
    return _explain(
        decision,
        rank_asked(on_device.problem, resolved.device, decision.computation.kernel),
        resolved.device,
        computed_as=_flattening_text(on_device, route.resolved.shape),
        epilogue=resolved.asked.epilogue,
        copied=route.resolved.host_operands,
    )


def _symmetry_text(problem: Problem, candidate: Candidate) -> str | None:
    """Describe how a symmetric result is computed; None for another result."""
    if problem.adds_transpose:
        return ADDED
    return SYMMETRY[candidate.triangle] if problem.triangle else None


def _flattening_text(route: Route, shape: tuple[int, ...]) -> str | None:
    """Describe a batch that is computed as one matrix, or a product that is computed in pieces."""
    if route.resolved.pieces:
        return _pieces_text(route.resolved.pieces)
    problem, (*batch, m, _) = route.asked, shape
    if not batch or batch[0] == problem.batch:
        return None
    rows, cols = (problem.n, problem.m) if problem.is_transposed else (problem.m, problem.n)
    shared, lines = ("b", f"{rows} rows") if rows > m else ("a", f"{cols} columns")
    return f"{batch[0]} matrices that share {shared}: one product of {lines}"


def _pieces_text(pieces: Sequence[Piece]) -> str | None:
    return f"{len(pieces)} pieces; this is the first" if pieces else None


def _triangles_text(computation: Computation, part: Problem) -> str | None:
    """Describe how triangular operands are multiplied; None for full ones."""
    skipped = f", {1 - filled_share(part):.0%} of the products are skipped" * bool(part.k_ranges)
    if part.clears:
        return f"zeros are put beside the diagonal in shared memory{skipped}"
    names = " and ".join(copy.name for copy in computation.copies)
    return f"copies of {names} with zeros beside the diagonal{skipped}" if names else None


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
    dtype: Any = "float32",
    *,
    batch: int = 1,
    layout: str = "row_row",
    out_dtype: Any = None,
    implementation: Kernel | None = None,
    precision: Precision | None = None,
    batch_invariant: bool = False,
    modulus: int | None = None,
    gpu: str | None = None,
) -> Explanation:
    """Explain what `gemm` would do with (m, k) and (k, n) operands and a row-major result.

    Args:
        m, n, k: sizes.
        dtype: dtype of the operands, by its name, or as NumPy or torch have it (`np.float32`);
            complex ones are not conjugated.
        batch: number of products.
        layout: orders of a and b: "row_row", "row_col" (as x @ weight.T has it), "col_row" or
            "col_col".
        out_dtype: dtype of the result, like dtype; None for that of a new result.
        implementation, precision, batch_invariant, modulus: as `gemm` takes them.
        gpu: name of a card, such as "RTX 4090", which need not be at hand; None for the first GPU.

    Raises:
        GpuUnavailableError: no GPU, the simulator is not enabled, and no card is named.
        UnknownGpuError: the facts of the named card are not known.
        LayoutError: the layout is unknown.
        ShapeError: a size is no integer, or negative.
        DtypeError, PrecisionError, SettingError, UnknownImplementationError,
        UnsupportedProblemError: under the same conditions as in `gemm`.
    """
    dtype, out_dtype = dtype_name(dtype), dtype_name(out_dtype)
    arithmetic = with_modulus(modulus, precision)
    problem = contiguous_problem(
        dtype, m, n, k, batch, layout=layout, out_dtype=out_dtype, precision=arithmetic
    )
    asked = with_batch_invariance(implementation, batch_invariant)
    if isinstance(asked, BatchInvariant):
        problem = for_any_rows(problem)
    device = device_facts(0) if gpu is None else find_card(gpu).facts
    pieces = pieces_of(problem)
    if pieces:
        problem = pieces[0].problem
    form = form_of_problem(problem, "", asked, device) if dtype in COMPLEX_PARTS else None
    computation = computation_of_reals(problem, asked, device)
    if form is not None:
        computation = Computation(form.product, form=form, kernel=asked)
    ranking = rank_asked(computation.product, device, computation.kernel)
    chosen = ranking.candidates[0]
    is_launched = not (pieces or problem.is_empty)
    program = lower(computation, chosen, device) if is_launched else None
    decision, text = Decision(computation, chosen, program), _pieces_text(pieces)
    return _explain(decision, ranking, device, computed_as=text, is_named_gpu=gpu is not None)


def _explain(
    decision: Decision,
    ranking: Ranking,
    device: DeviceFacts,
    *,
    computed_as: str | None,
    epilogue: BoundEpilogue | None = None,
    copied: tuple[str, ...] = (),
    is_named_gpu: bool = False,
) -> Explanation:
    problem, candidate = decision.computation.product, decision.candidate
    form, program = decision.computation.form, decision.program
    implementation, config = candidate.implementation, candidate.config
    part = candidate.part_of(problem)
    own, digits = decision.computation.integers or problem, decision.computation.bytes
    flops, peak = (
        round(own.flops * filled_share(part)),
        device.peak_tflops[unit_dtype(problem.dtype)],
    )
    if problem.inner is None:
        unit = "int8" if digits or problem.dtype in BYTES else problem.arithmetic
        peak = device.tensor_tflops.get(unit, peak) / (digits.products if digits else 1)
    else:  # its instructions are one operation each, a multiply-add is two
        flops, peak = flops // 2 * problem.inner.operations, peak / 2
    roofline = Roofline(
        flops=flops,
        bytes_moved=own.bytes_moved,
        peak_tflops=peak,
        memory_gbytes_per_s=device.memory_gbytes_per_s,
    )
    work = Work(
        m=own.m,
        n=own.n,
        k=own.k,
        batch=own.batch,
        dtype=own.dtype,
        out_dtype=own.out_dtype,
        precision=own.precision,
        modulus=own.modulus,
        epilogue=str(epilogue) if epilogue else None,
        reduction=_reduction_text(epilogue, problem, candidate),
        computed_as="; ".join(
            str(text)
            for text in (computed_as, digits, _triangles_text(decision.computation, part))
            if text
        )
        or None,
        symmetry=_symmetry_text(problem, candidate),
        complex_form=None if form is None else str(form),
        is_transposed=problem.is_transposed,
        arrangements={name: getattr(own, name).arrangement for name in ("a", "b", "c", "out")},
        alignments={"a": own.a_alignment, "b": own.b_alignment},
        copied=copied,
        device=device.name,
        is_named_gpu=is_named_gpu,
        is_simulated=device.is_simulated,
        sm_count=device.sm_count,
        flops=roofline.flops,
        bytes_moved=roofline.bytes_moved,
    )
    is_predicted = not device.is_simulated
    choice = Choice(
        implementation.name,
        str(config) if config is not None else None,
        candidate.slices,
        candidate.reason,
        aligned=() if digits else tuple(implementation.computed(part).padded),
        accuracy=None if digits else implementation.kernel.accuracy(part),
        fallback=None if digits else implementation.fallback(part, config),
        candidates=tuple(
            (str(other), other.us)
            for other in ranking.candidates
            if other.us is not None and is_predicted
        ),
        rejected={
            name: reason
            for name, reason in (ranking.rejected | {**decision.failed}).items()
            if name != implementation.name
        },
    )
    prediction = Prediction(None, roofline, None)
    if is_predicted:
        us = predicted_us(digits, device) if digits else candidate.us
        prediction = Prediction(us, roofline, speeds_from(device, problem.dtype))
    steps = tuple(map(str, program.steps)) if program else ()
    return Explanation(work, choice, steps, _grid(candidate, part, device), prediction)


def _grid(candidate: Candidate, part: Problem, device: DeviceFacts) -> Grid:
    """Blocks of a kernel that computes a part of a problem, and how the SMs hold them."""
    implementation, config = candidate.implementation, candidate.config
    blocks = implementation.block_count(config, part, device.sm_count) * candidate.slices or None
    tiles = implementation.tile_count(config, part) or None
    limits = sm_limits(device.arch)
    record = None
    if not device.is_simulated:
        record = implementation.built_record(config, part, device.arch)
    per_sm = waves = None
    blocks_on_sm = 0
    if record is not None and limits is not None:
        per_sm = occupancy(limits, record.threads, record.registers, record.smem_bytes)
        if blocks is not None:
            blocks_on_sm = min(per_sm.blocks, -(-blocks // device.sm_count))
        if blocks is not None and tiles is not None:
            waves = count_waves(tiles, blocks, device.sm_count * per_sm.blocks)
    shares_tiles = config is not None and config.smem_bytes(part.dtype) > 0
    tile = implementation.kernel.result_tile(config, part) if shares_tiles else None
    return Grid(
        blocks,
        getattr(config, "threads", None),
        tiles,
        getattr(config, "split_k", 1),
        _tile_intensity(tile, part.dtype) if tile else None,
        record.registers if record else None,
        record.smem_bytes if record else None,
        per_sm,
        waves,
        _bytes_in_flight(config, part.dtype, blocks_on_sm),
        bytes_in_flight_needed(device.memory_gbytes_per_s, device.sm_count),
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

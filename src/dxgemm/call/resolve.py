"""Resolution of a call: its operands are checked against each other, and state a problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dxgemm.call.asked import Asked
from dxgemm.call.complex_call import check_complex, complex_epilogue
from dxgemm.call.epilogue import (
    OperandStrides,
    fuse,
    refuse_integers,
    refuse_missing_out,
    refuse_with_inner,
    refuse_with_mask,
    takes_flattened_rows,
)
from dxgemm.choice.batch_invariant import for_any_rows
from dxgemm.choice.legality import is_cleared
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.epilogues.check import check_operands, check_results
from dxgemm.errors import DeviceMismatchError, UnsupportedProblemError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.triangle import OTHER
from dxgemm.lower.reduced import ResultArray, result_array
from dxgemm.problem.define import define_problem
from dxgemm.problem.dtypes import EMULATED
from dxgemm.problem.layout import Layout, contiguous_layout
from dxgemm.problem.pieces import Piece, pieces_of
from dxgemm.problem.problem import Problem, flattened, oriented
from dxgemm.problem.triangular import CleanCopy, clean
from dxgemm.runtime.arrays import HOST
from dxgemm.runtime.device import device_facts


@dataclass(slots=True, eq=False)
class Resolved:
    """A call whose operands fit each other.

    Attributes:
        asked: what the caller asked for.
        problem: the whole problem, with its epilogue, in the orientation of kernels.
        shape: shape of the result as the caller sees it.
        ordinal, device: ordinal and facts of the GPU.
        results: shape and dtype of each array that a reduction writes, by label.
        strides: strides of the epilogue's operands as the kernel walks over them; see `fuse`.
        copies: copies of triangular operands, which the problem is of.
        pieces: pieces in which a very large problem is computed; empty for one that is not cut.
        host_operands: names of the operands that are copied to the GPU and back.
    """

    asked: Asked
    problem: Problem
    shape: tuple[int, ...]
    ordinal: int
    device: DeviceFacts
    results: Mapping[str, tuple[tuple[int, ...], str]]
    strides: OperandStrides
    copies: tuple[CleanCopy, ...]
    pieces: tuple[Piece, ...]
    host_operands: tuple[str, ...]

    def result_arrays(self) -> dict[str, ResultArray]:
        """Arrays that the reduction writes, by the names of the results."""
        arrays: dict[str, ResultArray] = {}
        epilogue = self.asked.epilogue
        if epilogue is None or epilogue.reduction is None:
            return arrays
        for name, label in epilogue.result_labels.items():
            layout = self.asked.layouts.get(label)
            layout = layout or contiguous_layout(*self.results[label], self.ordinal)
            arrays[name] = result_array(epilogue.reduction, name, layout, len(self.shape) == 3)
        return arrays


def resolve(asked: Asked) -> Resolved:
    """Check the operands of a call, and state its problem.

    Raises:
        DxgemmError: the first error of `define_problem`, of the epilogue, or of a combination of
            options that no kernel computes.
    """
    layouts, epilogue = asked.layouts, asked.epilogue
    is_complex, is_invariant = asked.is_complex, asked.is_invariant
    if is_complex and epilogue is not None:
        epilogue = complex_epilogue(epilogue)
        asked = asked._replace(epilogue=epilogue)
    problem, shape = define_problem(
        layouts["a"],
        layouts["b"],
        layouts.get("c"),
        layouts.get("out"),
        alpha_is_zero=asked.alpha_is_zero,
        beta_is_zero=asked.beta_is_zero,
        precision=asked.precision,
        result=asked.result,
        takes_complex=True,
    )
    if is_invariant:
        problem = for_any_rows(problem)
    if is_complex:
        check_complex(problem, asked)
    results: dict[str, tuple[tuple[int, ...], str]] = {}
    if epilogue is not None:
        results = _check_epilogue(asked, epilogue, problem, shape)
    ordinal = _find_ordinal(layouts)
    device = device_facts(ordinal)
    if epilogue is not None and epilogue.inner is not None:
        how = asked.precision, asked.triangle, asked.adds_transpose, device.arch
        refuse_with_inner(epilogue.inner, problem.dtype, *how)
    flat = None if asked.is_symmetric or asked.triangular else _flattened(asked, problem, shape)
    problem = flat or problem
    strides: OperandStrides = ()
    if epilogue is not None:
        problem, strides = fuse(problem, epilogue, layouts, None if flat is None else shape[-2])
    problem, copies = clean(
        problem,
        asked.triangular,
        not is_invariant,
        lambda dirty: is_cleared(dirty, device, asked.implementation),
    )
    pieces = pieces_of(problem, is_symmetric=asked.is_symmetric)
    if pieces and copies:
        raise UnsupportedProblemError(
            "gemm: triangular= does not go with a product of this size, which is computed in "
            "pieces; pass full operands."
        )
    on_host: tuple[str, ...] = ()
    if not simulator_enabled():
        on_host = tuple([name for name, layout in layouts.items() if layout.device == HOST])
    return Resolved(
        asked, problem, shape, ordinal, device, results, strides, copies, pieces, on_host
    )


def _find_ordinal(layouts: Mapping[str, Layout]) -> int:
    """Ordinal of the operands' GPU, 0 if all are in host memory; they are on one at most."""
    ordinal = max([layout.device for layout in layouts.values()])
    if simulator_enabled() and ordinal != HOST:
        raise DeviceMismatchError(
            f"gemm: an operand is on GPU {ordinal}, but NUMBA_ENABLE_CUDASIM is set: "
            "the simulator runs on host memory; pass NumPy arrays, or unset the variable."
        )
    return max(ordinal, 0)


def _check_epilogue(
    asked: Asked, epilogue: BoundEpilogue, problem: Problem, shape: tuple[int, ...]
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Check the epilogue's operands against the result; return `Resolved.results`."""
    layouts = asked.layouts
    refuse_integers(problem, epilogue)
    if not {"c", "out"} & layouts.keys():
        refuse_missing_out(epilogue, problem.dtype)
    if epilogue.is_masked:
        refuse_with_mask(problem, epilogue, asked.is_invariant)
    *batch, m, n = shape
    device = max(layouts["a"].device, layouts["b"].device)
    check_operands(
        epilogue.operands,
        [layouts[label] if label else None for label in epilogue.labels[: len(epilogue.operands)]],
        m,
        epilogue.columns(problem.n if epilogue.takes_pairs else n),
        batch[0] if batch else 1,
        device,
        problem.dtype,
    )
    reduction = epilogue.reduction
    if reduction is None:
        return {}
    reduction.check_sizes(m, n, math.prod(batch))
    shapes, dtypes = reduction.shapes(m, n, tuple(batch)), reduction.dtypes(problem.out_dtype)
    results = {
        label: (shapes[name], dtypes[name]) for name, label in epilogue.result_labels.items()
    }
    if reduction.out:
        check_results(results, layouts, device)
    return results


def _flattened(asked: Asked, problem: Problem, shape: tuple[int, ...]) -> Problem | None:
    """Problem of one matrix in place of a batch, see `flattened`; None to leave the batch.

    Columns are left with an epilogue; in emulated products, because b may be prepared as a batch;
    and in batch-invariant ones, because n decides on the order of their sums.
    """
    epilogue, m = asked.epilogue, shape[-2]
    is_emulated = (problem.precision or "").startswith(EMULATED)
    takes_columns = epilogue is None and not (asked.is_invariant or is_emulated)
    flat = flattened(problem, takes_columns=takes_columns)
    if flat is None:
        return None
    if epilogue is not None and not takes_flattened_rows(epilogue, asked.layouts, m):
        return None
    if asked.is_invariant and m == 1 and flat.a.row != flat.k:
        return None  # a single row counts as the first of several without gaps
    takes_pairs = epilogue is not None and epilogue.takes_pairs
    return flat if takes_pairs else oriented(flat)  # exchanged, pairs would be of rows


def with_triangle(problem: Problem, asked: Asked) -> Problem:
    """Problem of a symmetric result, in which `Problem.triangle` is set; or the problem as it is.

    For "either", a and b are known to begin at the same address. If their layouts or the call do
    not make the result symmetric, it is computed as any other.

    Raises:
        UnsupportedProblemError: what the epilogue makes of the result is no square matrix, or a
            transpose would have to be added modulo a number.
    """
    triangle, adds_transpose = asked.triangle, asked.adds_transpose
    if not triangle or (triangle == "either" and asked.triangular):
        return problem
    is_square = problem.reduction is None and not problem.takes_pairs
    if triangle == "either":
        is_plain = asked.implementation is None and not problem.reads_c
        is_plain = is_plain and problem.k > 0 and not problem.is_empty
        is_plain = is_plain and problem.batch == 1 and problem.epilogue is None
        is_same = problem.m == problem.n and problem.a == problem.b.transposed()
        if not (is_square and is_plain and is_same):
            return problem
    elif not is_square:
        raise UnsupportedProblemError(
            "gemm_symmetric: the epilogue reduces the result or takes pairs of its columns, "
            "and what it makes is no square matrix; call gemm(a, a.T, ...) instead."
        )
    elif problem.modulus and adds_transpose:
        raise UnsupportedProblemError(
            "gemm_symmetric: no transpose is added modulo a number; leave b out, or call "
            "gemm(a, b.T, ...) and gemm(b, a.T, ...)."
        )
    if problem.is_transposed:
        triangle = OTHER.get(triangle, triangle)
    return replace(problem, triangle=triangle, adds_transpose=adds_transpose)

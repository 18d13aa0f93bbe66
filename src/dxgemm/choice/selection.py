"""Selection of the candidate with the shortest predicted time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dxgemm.choice.columns import Columns, Row, resident_blocks
from dxgemm.choice.implementation import Implementation, misfit
from dxgemm.choice.legality import (
    Candidate,
    can_slice,
    config_fault,
    considered_kernels,
    exclusion,
    fits_config,
    fitting_configs,
    is_plain,
    is_sliceable,
    legal_kernels,
    reduction_paths,
    refusal,
    triangle_paths,
    triangular,
)
from dxgemm.choice.model import folding_us, predict, reducing_us, schedule
from dxgemm.choice.problem_facts import ProblemFacts
from dxgemm.choice.registry import IMPLEMENTATIONS, find_implementation
from dxgemm.choice.residual import Residual
from dxgemm.choice.tables import Speed, Table, forget_tables, is_of_chip, table_for
from dxgemm.errors import UnknownImplementationError, UnsupportedProblemError, shown
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.gpu.roofline import tile_efficiency
from dxgemm.handwritten.parts.kernel import MOST_BLOCKS
from dxgemm.handwritten.parts.operands import BYTES, FLOAT8
from dxgemm.problem.problem import Problem, stored_problem

UNMEASURED = 0.5  # fraction of the peak, times the tile's efficiency, for want of any table


# Dtypes that take the measurements of another, whose kernels differ in the multiplied type only.
MEASURED_AS = {"bfloat16": "float16"} | dict.fromkeys(BYTES, "int8")
MEASURED_AS |= dict.fromkeys(FLOAT8, "float8_e4m3fn")
# Dtype whose speeds a kernel has that was measured in none of a dtype.
LIKE = {"int32": "float32", "float8_e4m3fn": "int8"}


class Ranking(NamedTuple):
    """All candidates of a problem, in order.

    Attributes:
        candidates: the best config of each kernel with its predicted time, the shortest first; of a
            symmetric result one for each path.
        rejected: by name of each other kernel, the reason why it is slower or not a candidate.
    """

    candidates: tuple[Candidate, ...]
    rejected: dict[str, str]


def choose(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...] | None = None
) -> Candidate:
    """Choose the best candidate: a kernel, its config and its number of split-K slices.

    `dxgemm.choice.model.schedule` decides that number for each candidate.

    Args, Raises:
        The same as those of `rank`.
    """
    if implementation is not None:
        return _named(problem, device, implementation)
    found = _first_that_supports(problem, device)
    return found or best_of(problem, device, _fitting_kernels(problem, device))


def rank(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...] | None = None
) -> Ranking:
    """Rank all candidates of a problem by predicted time, with the reasons against the others.

    Args:
        problem: the problem to compute.
        device: the GPU to compute it on.
        implementation: None for the automatic choice among dxgemm's own kernels; a name, a name and
            one of its configs, or these and the number of split-K slices, for exactly that kernel.

    Raises:
        UnknownImplementationError: there is no such name.
        UnsupportedProblemError: the named implementation cannot compute the problem, or none can;
            the message lists all reasons.
    """
    if implementation is not None:
        asked = _named(problem, device, implementation)
        others = (i.name for i in IMPLEMENTATIONS if i is not asked.implementation)
        reason = f"{asked.implementation.name} was asked for"
        return Ranking((asked,), dict.fromkeys(others, reason))
    legal = _fitting_kernels(problem, device)
    candidates = _in_order(time_candidates(problem, device, legal))
    unfit = [i for i in IMPLEMENTATIONS if i not in legal]
    rejected = {i.name: exclusion(i, problem, device) or "it has no config" for i in unfit}
    for slower in candidates[1:]:
        if slower.implementation is not candidates[0].implementation:
            rejected.setdefault(slower.implementation.name, f"slower: {slower.reason}")
    return Ranking(tuple(candidates), rejected)


@dataclass
class Times:
    """Predicted microseconds of candidates for one problem.

    Attributes:
        columns: the candidates.
        slices: number of split-K slices of each candidate; not an array if all have one.
        us: times by the model, corrected by measurements; infinite for a split-K candidate with a
            single slice.
        stores_matrix: True if a reduction is unfused.
        triangle: path to a symmetric result, see `Candidate.triangle`.
        is_simulated: True on numba's simulator, where us is a cost: 1 with barriers, else 0.
    """

    columns: Columns
    slices: Any
    us: np.ndarray
    stores_matrix: bool = False
    triangle: str = "whole"
    is_simulated: bool = False

    def candidate(self, place: int) -> Candidate:
        """Candidate of a row, with its time."""
        row, us = self.columns.rows[place], float(self.us[place])
        slices = int(self.slices[place]) if type(self.slices) is np.ndarray else 1
        note = ""
        if self.is_simulated:
            note = "with barriers" if us else "without barriers, which the simulator is slow at"
        stores, triangle = self.stores_matrix, self.triangle
        return Candidate(row.implementation, row.config, slices, stores, us, note, triangle)


def time_candidates(
    problem: Problem,
    device: DeviceFacts,
    implementations: Sequence[Implementation],
    only: tuple[Any, int] | None = None,
) -> list[Times]:
    """Predict the times of all candidates of some kernels, each of which can compute the problem.

    Args:
        problem: the problem to compute.
        device: the GPU to compute it on.
        implementations: the kernels.
        only: a config and a number of split-K slices, to which the candidates are restricted.
    """
    found = []
    if problem.triangle:
        for path in ("whole", "half", "folded"):
            kernels = [i for i in implementations if path in triangle_paths(i, problem)]
            if kernels:
                part, may_slice = triangular(problem, path), is_sliceable(problem)
                times = _time(part, device, kernels, only, may_slice and path != "folded")
                times.triangle = path
                if path == "folded" and not device.is_simulated:
                    times.us += folding_us(problem)
                found.append(times)
        return found
    if problem.reduction is None:
        return [_time(problem, device, implementations, only, is_sliceable(problem))]
    for stores in (False, True):
        kernels = [i for i in implementations if stores in reduction_paths(i, problem)]
        if kernels:
            part = stored_problem(problem) if stores else problem
            times = _time(part, device, kernels, only, may_slice=False)
            if not device.is_simulated:
                times.us += reducing_us(problem, not stores, device)
            times.stores_matrix = stores
            found.append(times)
    return found


def best_of(
    problem: Problem,
    device: DeviceFacts,
    implementations: Sequence[Implementation],
    only: tuple[Any, int] | None = None,
) -> Candidate:
    """Candidate with the shortest time among those of some kernels; of equal ones the first.

    Args:
        problem, device, implementations, only: as `time_candidates` takes them.
    """
    found = time_candidates(problem, device, implementations, only)
    bests = [times.candidate(int(times.us.argmin())) for times in found]
    return bests[0] if len(bests) == 1 else min(bests, key=_time_of)


def _first_that_supports(problem: Problem, device: DeviceFacts) -> Candidate | None:
    """`best_of` all legal kernels of a plain problem, few of which are asked; None of others.

    Kernels are timed first, and then asked from the quickest on whether they support the problem.
    """
    is_large = problem.batch * problem.m * problem.n > MOST_BLOCKS
    if is_large or problem.triangle or problem.reduction is not None or not is_plain(problem):
        return None
    refuses = considered_kernels(problem, device)
    times = _time(problem, device, refuses, None, is_sliceable(problem))
    for _ in refuses:
        place = int(times.us.argmin())
        kernel = times.columns.rows[place].implementation
        if refuses[kernel](problem) is None:
            return times.candidate(place)
        times.us[times.columns.places[kernel]] = np.inf
    return None


def _time_of(candidate: Candidate) -> float:
    return candidate.us or 0.0


def _in_order(found: list[Times]) -> list[Candidate]:
    """List the best candidate of each kernel and path, the shortest time first."""
    bests: dict[tuple[Implementation, str], Candidate] = {}
    for times in found:
        for place in times.us.argsort(kind="stable"):
            candidate = times.candidate(int(place))
            key = candidate.implementation, times.triangle
            known = bests.setdefault(key, candidate)
            if times.us[place] < known.us:
                bests[key] = candidate
    return sorted(bests.values(), key=_time_of)


def _fitting_kernels(problem: Problem, device: DeviceFacts) -> list[Implementation]:
    """Kernels that the automatic choice considers, of which there must be one."""
    legal = legal_kernels(problem, device)
    if not legal:
        reasons = "; ".join(f"{i.name}: {exclusion(i, problem, device)}" for i in IMPLEMENTATIONS)
        raise UnsupportedProblemError(f"gemm: no implementation fits. {reasons}")
    return legal


def _time(
    problem: Problem,
    device: DeviceFacts,
    implementations: Iterable[Implementation],
    only: tuple[Any, int] | None,
    may_slice: bool,
) -> Times:
    kernels = tuple(implementations)
    columns, residual = _candidates(problem.dtype, device, kernels, may_slice)
    if may_slice and not columns.may_slice(problem.k, problem.batch * problem.m * problem.n):
        columns, residual = _candidates(problem.dtype, device, kernels, False)
    config, given_slices = only or (None, None)
    is_large = problem.batch * problem.m * problem.n > MOST_BLOCKS
    is_special = problem.epilogue is not None and (
        problem.mask_block or problem.has_block_scales or problem.inner_parts > 1
    )
    if only is not None or is_special or is_large:
        few = [
            place
            for place, row in enumerate(columns.rows)
            if (only is None or (row.config == config and not row.fill))
            and fits_config(row.implementation, row.config, problem)
        ]
        if is_large:
            # A grid has a block for each tile; the launch refuses what is left.
            tiles = [row.implementation.tile_count(row.config, problem) for row in columns.rows]
            few = [place for place in few if tiles[place] <= MOST_BLOCKS] or few
        columns = columns.take(few)
        residual = residual.take(few) if residual else None
    if device.is_simulated:
        waits = np.array([row.config.smem_bytes(problem.dtype) > 0 for row in columns.rows], float)
        return Times(columns, 1, waits, is_simulated=True)
    facts = ProblemFacts.of(problem)
    plan = schedule(columns, facts, given_slices)
    us = predict(facts, plan)
    if residual is not None:
        us *= residual.factors(facts, plan)
    return Times(columns, plan.slices, us)


@cache
def _all_candidates(dtype: str, device: DeviceFacts) -> Columns:
    """Columns of all candidates of a dtype on a device."""
    table = None if device.is_simulated else table_for(device)
    rows = all_rows(dtype, device)
    speeds = [speed_of(row, MEASURED_AS.get(dtype, dtype), table) for row in rows]
    return Columns.of(rows, speeds, dtype, device)


def all_rows(dtype: str, device: DeviceFacts) -> list[Row]:
    """List every config of dxgemm's own kernels for a dtype, without and with split-K."""
    rows = []
    for implementation in (i for i in IMPLEMENTATIONS if i.is_own):
        for config in fitting_configs(implementation, dtype, device):
            fills = {0}
            if implementation.kernel.slices_k and config.takes_slices:
                resident = resident_blocks(config, dtype, device)
                fills |= {1, resident, 2 * resident}
            rows += [Row(implementation, config, fill) for fill in sorted(fills)]
    return rows


@cache
def _candidates(
    dtype: str, device: DeviceFacts, kernels: tuple[Implementation, ...], may_slice: bool
) -> tuple[Columns, Residual | None]:
    """Columns of the candidates of some kernels, and the corrections of their times."""
    columns = _all_candidates(dtype, device)
    columns = columns.take(
        [
            place
            for place, row in enumerate(columns.rows)
            if row.implementation in kernels and (may_slice or not row.fill)
        ]
    )
    table = None if device.is_simulated else table_for(device)
    weights = table.corrections.get(MEASURED_AS.get(dtype, dtype)) if table else None
    return columns, Residual.of(weights, columns) if weights else None


def speed_of(row: Row, dtype: str, table: Table | None) -> Speed:
    """Speed of a config: as measured, or else that of the kernel's config with the nearest tile."""
    config, measured = row.config, row.implementation
    if measured.stand_in:
        measured = find_implementation(measured.stand_in)
    if table is not None:
        dtype = measured.kernel.measured_as(dtype)
        speed = table.speeds.get((dtype, measured.name, str(config)))
        if speed is not None:
            return speed
        known = [
            (abs(math.log2(other.tile_m * other.tile_n / (config.tile_m * config.tile_n))), speed)
            for other in measured.configs(dtype, table.chip.arch)
            if (speed := table.speeds.get((dtype, measured.name, str(other))))
        ]
        if known:
            return min(known, key=lambda entry: entry[0])[1]
        if dtype in LIKE:
            return speed_of(row, LIKE[dtype], table)
    return Speed(UNMEASURED * tile_efficiency(config.tile_m, config.tile_n))


def forget_candidates() -> None:
    """Forget tables and candidates, so that the next choice reads the tables again."""
    forget_tables()
    _all_candidates.cache_clear()
    _candidates.cache_clear()


def _named(
    problem: Problem, device: DeviceFacts, implementation: str | tuple[Any, ...]
) -> Candidate:
    """Candidate that was asked for by name."""
    chosen, config, slices = asked_kernel(implementation)
    name = chosen.name
    reason = refusal(chosen, problem, device)
    if reason is not None:
        text = f"gemm: implementation {name!r} cannot compute this: {reason}."
        if reason == chosen.runs_on(device.arch):
            able = [i.name for i in IMPLEMENTATIONS if i.is_own and not refusal(i, problem, device)]
            text += f" {device.name} computes it with {', '.join(able) or 'none'}."
        raise UnsupportedProblemError(text)
    configs = chosen.configs(problem.dtype, device.arch)
    if isinstance(config, str):  # as `explain` prints it
        config = next((known for known in configs if str(known) == config), config)
    is_known = type(config) in map(type, configs) and config in configs
    if config is not None and not is_known:
        listed = ", ".join(map(str, configs))
        raise UnsupportedProblemError(
            f"gemm: {name!r} has no config {shown(config)} for {device.arch}; there are {listed}."
        )
    if not chosen.is_own:
        stores_matrix = problem.reduction is not None
        (*_, path) = triangle_paths(chosen, problem)
        note = "asked for by name"
        return Candidate(chosen, None, stores_matrix=stores_matrix, note=note, triangle=path)
    if config is None:
        best = best_of(problem, device, [chosen])
        return best._replace(note=f"asked for by name; {best.reason}")
    reason = misfit(config, problem.dtype, device.arch, device.smem_bytes_per_block)
    if reason is not None:
        raise UnsupportedProblemError(f"gemm: {name} cannot compute this: {reason}.")
    if fault := config_fault(chosen, config, problem):
        raise UnsupportedProblemError(
            f"gemm: {name} {config} {fault}; name another config, or none."
        )
    if slices > 1 and not can_slice(chosen, config, problem, slices):
        raise UnsupportedProblemError(f"gemm: {name} {config} cannot cut this k into {slices}.")
    best = best_of(problem, device, [chosen], (config, slices))
    return best._replace(note="asked for by name and config")


def asked_kernel(implementation: Any) -> tuple[Implementation, Any, int]:
    """Implementation, config and number of slices that were asked for; None for no config."""
    if not isinstance(implementation, tuple):
        return find_implementation(implementation), None, 1
    given = (*implementation, 1) if len(implementation) == 2 else implementation
    if len(given) != 3 or type(given[2]) is not int or given[2] < 1:
        raise UnknownImplementationError(
            f"gemm: implementation is {shown(implementation)}; pass a name, (name, config), or "
            "(name, config, slices) with a number of split-K slices."
        )
    return find_implementation(given[0]), *given[1:]


def speeds_from(device: DeviceFacts, dtype: str) -> str:
    """Source of the speeds with which candidates of a dtype are compared, in one line."""
    table = table_for(device)
    if table is None:
        return "by tile sizes alone: no table of speeds could be read"
    measured = MEASURED_AS.get(dtype, dtype)
    if not any(row_dtype == measured for row_dtype, _, _ in table.speeds):
        return f"by tile sizes alone: no speeds of {dtype} are in the table"
    chip = table.chip
    text = f"measured on {chip.gpu}, {table.workloads} problems"
    if not is_of_chip(table, device):
        text += (
            f" ({chip.sm_count} SMs, {chip.memory_gbytes_per_s:.0f} GB/s), the nearest chip with a "
            f"table; scaled to {device.sm_count} SMs and {device.memory_gbytes_per_s:.0f} GB/s"
        )
    return text

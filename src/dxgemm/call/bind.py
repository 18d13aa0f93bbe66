"""Binding of a decided call: the launch of its kernel and those around it, built if need be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dxgemm.choice.implementation import Cublas
from dxgemm.choice.legality import Candidate
from dxgemm.choice.selection import Ranking
from dxgemm.errors import BuildError, MissingPackageError
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.log import logger
from dxgemm.lower.complex_product import complex_cublas, lower_complex
from dxgemm.lower.product import lower_candidate
from dxgemm.lower.reduced import ResultArray, lower_reduced
from dxgemm.problem.complex_form import ComplexForm
from dxgemm.problem.problem import Problem
from dxgemm.runtime.binding import Launch
from dxgemm.runtime.program import Program


@dataclass(frozen=True)
class Decided:
    """Decision of a route, to which a candidate is bound.

    Attributes:
        problem: the problem in the kernels' orientation; of a complex one, that of its form.
        complex_form: the form in which a complex problem is computed; None for a real one.
        reduced: a complex problem whose result is reduced; None without a reduction.
        results: arrays that a reduction writes, by the names of the results.
        device, ordinal: facts and ordinal of the GPU.
        ranking: ranks all candidates, which is done if the first one fails.
    """

    problem: Problem
    complex_form: ComplexForm | None
    reduced: Problem | None
    results: Mapping[str, ResultArray]
    device: DeviceFacts
    ordinal: int
    ranking: Callable[[], Ranking]


def lower(decided: Decided, candidate: Candidate) -> Program:
    """Program of a candidate."""
    form, device = decided.complex_form, decided.device
    if decided.problem.reduction is not None:
        return lower_reduced(decided.problem, candidate, decided.results, device)
    if form is not None and isinstance(candidate.implementation, Cublas):
        return complex_cublas(form)
    program = lower_candidate(decided.problem, candidate, device)
    if form is None:
        return program
    program = lower_complex(form, program)
    if decided.reduced is None:
        return program
    stored = form.problem, program
    return lower_reduced(decided.reduced, candidate, decided.results, device, stored)


def bind_first(decided: Decided, best: Candidate) -> tuple[Candidate, Program, Launch]:
    """Bind the first candidate, from the best on, whose kernel is built or can be built now.

    The candidates before it join the rejected ones; a failed build also raises a warning.
    """

    def in_turn() -> Iterator[Candidate]:
        yield best
        yield from decided.ranking().candidates[1:]

    failures: list[tuple[Candidate, BuildError | MissingPackageError]] = []
    for candidate in in_turn():
        try:
            program = lower(decided, candidate)
            launch = program.bind(decided.device.arch, decided.ordinal)
        except (BuildError, MissingPackageError) as error:
            failures.append((candidate, error))
            logger.info("gemm: not by %s: %s", candidate, error)
            continue
        if not failures:
            return candidate, program, launch
        rejected = decided.ranking().rejected
        rejected.pop(candidate.implementation.name, None)
        for failed, reason in failures:
            rejected[failed.implementation.name] = f"not built: {reason}"
            text = f"gemm: {candidate} takes the place of {failed}: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return candidate, program, launch
    last_error = failures[-1][1]
    if len(failures) == 1 or isinstance(last_error, MissingPackageError):
        raise last_error
    reasons = "; ".join(f"{candidate}: {error}" for candidate, error in failures)
    raise BuildError(f"gemm: no implementation could be built. {reasons}")

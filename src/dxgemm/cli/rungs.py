"""Rungs of the ladder as arguments of commands: by number or name, with a config by its text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

import dxgemm
from dxgemm.choice.implementation import Handwritten
from dxgemm.gpu.status import probe, simulator_enabled
from dxgemm.problem.arguments import Precision
from dxgemm.problem.problem import Problem
from dxgemm.tuning.workloads import Workload

RungArgument = Annotated[
    str, typer.Argument(metavar="RUNG", help="Number or name, as `dxgemm ladder` lists them.")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", help="Part of its text, such as 128x128; default: first.")
]
DEFAULT_ARCH = "sm_90a"
# Size of the operands for commands about a kernel and not a product. It selects the variant for
# contiguous operands whose rows are aligned to 16 bytes.
SHOWN_SIZE = 4096


class Arithmetic(StrEnum):
    """Arithmetic of the products."""

    float32 = "float32"
    float64 = "float64"
    tf32 = "tf32"
    float16 = "float16"
    bfloat16 = "bfloat16"

    @property
    def dtype(self) -> str:
        """Dtype of the operands."""
        return "float32" if self is Arithmetic.tf32 else self.value

    @property
    def precision(self) -> Precision | None:
        """Value of `precision=` that permits the arithmetic."""
        return "tf32" if self is Arithmetic.tf32 else None

    def problem(self, size: int) -> Problem:
        """Problem of the product of two square matrices."""
        return self.workload(size).problem()

    def workload(self, size: int) -> Workload:
        """Product of two square matrices."""
        return Workload(self.dtype, size, size, size, precision=self.precision)


ArithmeticOption = Annotated[
    Arithmetic, typer.Option("--dtype", help="tf32: float32 operands on tensor cores.")
]


class UnknownRungError(dxgemm.errors.UnknownImplementationError):
    """There is no rung, or no config of it, with this name."""


def rungs() -> list[Handwritten]:
    """List the implementations on the ladder, first rung first."""
    found = [i for i in dxgemm.implementations() if isinstance(i, Handwritten) and i.rung]
    return sorted(found, key=lambda implementation: implementation.rung or 0)


def find_rungs(text: str) -> list[Handwritten]:
    """Find the rungs with a number or name: a number may stand for one kernel per dtype.

    Raises:
        UnknownRungError: there is none.
    """
    found = [rung for rung in rungs() if text in (rung.name, str(rung.rung))]
    if not found:
        known = ", ".join(f"{rung.rung} {rung.name}" for rung in rungs())
        raise UnknownRungError(f"there is no rung {text!r}; there are {known}.")
    return found


def find_rung(text: str, arithmetic: Arithmetic) -> Handwritten:
    """Find the rung that is made for an arithmetic, or else the first one.

    Raises:
        UnknownRungError: there is none.
    """
    found = find_rungs(text)
    return next((rung for rung in found if is_made_for(rung, arithmetic, SHOWN_SIZE)), found[0])


def find_config(rung: Handwritten, text: str | None, arithmetic: Arithmetic) -> Any:
    """Find the config with a text for an arithmetic, or else the first that contains the text.

    Raises:
        UnknownRungError: there is none.
    """
    configs = rung.configs(arithmetic.dtype)
    found = [config for config in configs if text is None or text in str(config)]
    found.sort(key=lambda config: str(config) != text)
    if not found:
        known = ", ".join(map(str, configs)) or "none on the simulator"
        raise UnknownRungError(f"{rung.name} has no config {text!r}; there are {known}.")
    return found[0]


def require_support(rung: Handwritten, problem: Problem, arch: str | None = None) -> None:
    """Raise unless the rung computes the problem, on an architecture if one is named.

    Raises:
        UnsupportedProblemError: it does not; the message has the reason.
    """
    reason = rung.supports(problem) or (arch and rung.runs_on(arch))
    if reason:
        raise dxgemm.errors.UnsupportedProblemError(f"{rung.name} cannot compute this: {reason}.")


def is_made_for(rung: Handwritten, arithmetic: Arithmetic, size: int) -> bool:
    """True if a rung computes a square product in this arithmetic itself.

    A rung of true float32 also serves a call that permits TF32, but is no rung of that ladder.
    """
    if rung.supports(arithmetic.problem(size)) is not None:
        return False
    full_precision = Arithmetic(arithmetic.dtype)
    if arithmetic is full_precision:
        return True
    return rung.supports(full_precision.problem(size)) is not None


def default_arch() -> str:
    """Architecture of this machine's GPU; without one, that of the ladder."""
    if simulator_enabled() or probe().problem:
        return DEFAULT_ARCH
    from dxgemm.runtime.device import device_facts

    return device_facts(0).arch

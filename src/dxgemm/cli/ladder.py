"""`dxgemm ladder`: every rung on this machine's GPU, checked, timed and compared with cuBLAS."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Annotated, Any

import typer

import dxgemm
from dxgemm.choice.legality import fitting_configs
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, figure, note, print_json, print_table
from dxgemm.cli.run import TooSlowError
from dxgemm.cli.rungs import Arithmetic, ArithmeticOption, find_rungs, is_made_for, rungs
from dxgemm.cli.timing import clock_name, seconds_per_call, time_text
from dxgemm.gpu.status import simulator_enabled
from dxgemm.log import progress_bar
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.measure import Bench, uses_cupy
from dxgemm.tuning.sampling import calls_in_sample, interleave

GPU_SIZE, SIMULATED_SIZE = 4096, 12
MAX_SIMULATED_SIZE = 128  # beyond it a rung takes minutes
ROUNDS = 9
CLOCK = f"around a sample, median of {ROUNDS} rounds in turn with cuBLAS"


@dataclass
class Standing:
    """Result of one rung.

    Attributes:
        rung: number of the rung; None for cuBLAS.
        name, config: implementation and its config.
        time_us, tflops: time and speed of a call; None without a time.
        vs_cublas: cuBLAS's time over this one, sampled in turn.
        vs_before: the time of the previous rung in the table over this one.
        refusal: reason why there is no time; None if there is one.
    """

    rung: int | None
    name: str
    config: str | None = None
    time_us: float | None = None
    tflops: float | None = None
    vs_cublas: float | None = None
    vs_before: float | None = None
    refusal: str | None = None


def ladder(
    dtype: ArithmeticOption = Arithmetic.float32,
    size: Annotated[
        int | None,
        typer.Option(min=1, help=f"m = n = k; default {GPU_SIZE}, {SIMULATED_SIZE} simulated."),
    ] = None,
    rung: Annotated[
        list[str] | None, typer.Option(help="Number or name; repeatable; default: all.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Try every config of a rung and show the best.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Time every rung of the ladder on this GPU, against cuBLAS; results are checked."""
    chosen = [found for text in rung for found in find_rungs(text)] if rung else rungs()
    enable_simulator_without_gpu()
    if simulator_enabled():
        size = size or SIMULATED_SIZE
        if size > MAX_SIMULATED_SIZE:
            raise TooSlowError(
                f"--size {size} would take hours on the simulator; at most {MAX_SIMULATED_SIZE}."
            )
    elif not uses_cupy():
        raise dxgemm.errors.MissingPackageError(
            "timing the ladder needs CuPy; pip install 'dxgemm[cu13]', or 'dxgemm[cu12]'."
        )
    size = size or GPU_SIZE
    contest = _Contest(dtype, size)
    standings = []
    with progress_bar(is_shown=not as_json) as report:
        for done, implementation in enumerate(chosen):
            report(done, len(chosen), f"rung {implementation.rung}, {implementation.name}")
            if is_made_for(implementation, dtype, size):
                standings.append(contest.stand(implementation, tune))
            else:
                reason = implementation.supports(dtype.problem(size)) or "it is a rung of float32"
                standings.append(Standing(implementation.rung, implementation.name, refusal=reason))
    if contest.cublas is not None:
        standings.append(contest.cublas_standing())
    _compare_with_before(standings)

    device = dxgemm.explain_shape(1, 1, 1).work.device
    if as_json:
        print_json(
            {
                "device": device,
                "size": size,
                "dtype": dtype.value,
                "clock": clock_name(CLOCK),
                "rungs": [asdict(standing) for standing in standings],
            }
        )
    else:
        typer.echo(f"The ladder, m = n = k = {size}, {dtype.value}, on {device}")
        _print_standings(standings)
        typer.echo(f"Times: {clock_name(CLOCK)}. Every result was checked, bit by bit.")


class _Contest:
    """Operands for the check and for the timing, and cuBLAS to compare with."""

    def __init__(self, arithmetic: Arithmetic, size: int) -> None:
        self._size, self._dtype = size, arithmetic.dtype
        self._bench = Bench(arithmetic.workload(size), seconds_per_call)
        self.cublas = self._find_cublas()
        self._cublas_s: list[float] = []

    def _find_cublas(self) -> Any:
        if simulator_enabled():
            return None
        try:
            return self._bench.plans("cublas")[0]
        except (dxgemm.errors.UnsupportedProblemError, dxgemm.errors.MissingPackageError) as error:
            note(f"no comparison with cuBLAS: {error}")
            return None

    def stand(self, implementation: Any, tune: bool) -> Standing:
        """Check and time one rung, in turn with cuBLAS."""
        standing = Standing(implementation.rung, implementation.name)
        choices: list[Any] = [implementation.name]
        if tune:
            configs = fitting_configs(implementation, self._dtype, device_facts(0))
            choices = [(implementation.name, config) for config in configs]
        try:
            checked = [self._bench.plans(choice)[0] for choice in choices]
        except (dxgemm.errors.UnsupportedProblemError, dxgemm.errors.BuildError) as error:
            standing.refusal = str(error)
            return standing
        if not checked:
            standing.refusal = "it has no config"
            return standing
        timed = [(seconds_per_call([plan]), plan) for plan in checked]
        best_s, best = min(timed, key=itemgetter(0))
        standing.config, standing.time_us = best.explain().config, 1e6 * best_s
        if simulator_enabled():
            return standing
        calls = calls_in_sample(best_s)
        plans = {"own": best} | ({"cublas": self.cublas} if self.cublas else {})
        variants = {name: partial(seconds_per_call, [plan] * calls) for name, plan in plans.items()}
        samples = interleave(variants, ROUNDS)
        standing.time_us = 1e6 * median(samples["own"])
        standing.tflops = self._tflops(standing.time_us)
        if cublas_s := samples.get("cublas"):
            self._cublas_s += cublas_s
            standing.vs_cublas = 1e6 * median(cublas_s) / standing.time_us
        return standing

    def cublas_standing(self) -> Standing:
        """Result of cuBLAS, from all samples."""
        standing = Standing(None, "cublas")
        if self._cublas_s:
            standing.time_us = 1e6 * median(self._cublas_s)
            standing.tflops = self._tflops(standing.time_us)
            standing.vs_cublas = 1.0
        return standing

    def _tflops(self, time_us: float) -> float:
        return 2e-6 * self._size**3 / time_us


def _compare_with_before(standings: list[Standing]) -> None:
    before = None
    for standing in standings:
        if standing.rung is not None and standing.time_us is not None:
            if before is not None:
                standing.vs_before = before / standing.time_us
            before = standing.time_us


def _print_standings(standings: list[Standing]) -> None:
    print_table(
        ("rung", "kernel", "config", ">time", ">TFLOP/s", ">x cuBLAS", ">x before"),
        [
            (
                standing.rung,
                standing.name,
                standing.config,
                time_text(standing.time_us),
                figure(standing.tflops, ".3g"),
                figure(standing.vs_cublas, ".2f"),
                figure(standing.vs_before, ".2f"),
            )
            for standing in standings
            if standing.time_us is not None
        ],
    )
    for standing in standings:
        if standing.refusal is not None:
            typer.echo(f"Not timed: {standing.rung} {standing.name}: {standing.refusal}")

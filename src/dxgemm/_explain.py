"""What a call would do and why, in the terms of a tutorial."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dxgemm._dispatch import Candidate, Decision, choose
from dxgemm._occupancy import occupancy, sm_limits
from dxgemm._problem import MAX_ALIGNMENT, Problem, contiguous_problem
from dxgemm._route import Route
from dxgemm.epilogues.stages import EpilogueShape
from dxgemm.runtime.device import DeviceFacts, device_facts


@dataclass(frozen=True)
class Explanation:
    """How one GEMM is computed.

    Attributes:
        m, n, k, batch, dtype: of the kernel's problem; m and n are exchanged if is_transposed.
        out_dtype: of c and out.
        precision: what the call permits instead of the dtype's own arithmetic; None for nothing.
        epilogue: the functions that are applied to each element; None for none.
        reduction: what the result is reduced to, and whether by the kernel that computes it; None
            where it is stored and that is all.
        is_transposed: whether out.T = b.T @ a.T is computed, because out is column-major.
        arrangements: of a, b, c and out as the kernel sees them.
        alignments: bytes, the largest power of two up to 16 that divides the address of a and b.
        copied: host operands that are copied to the GPU or back.
        device: name of the GPU.
        implementation, config, rule: the choice, and the rule that made it.
        fallback: what computes it instead where the operands' values ask for that, None if none do;
            `split_fallbacks` counts how often.
        rejected: reason by name of every other implementation.
        blocks, threads: of the launch; None where the implementation does not tell.
        blocks_per_sm: how many an SM holds at once; None until the kernel is built.
        waves: blocks over those that are resident at once; None until the kernel is built.
        registers, smem_bytes: a thread's and a block's; None until the kernel is built.
        gflops, mbytes: operations, and the fewest bytes through device memory.
        roofline_us: the larger of their times at the GPU's peaks, tensor cores included.
        bound: "compute" or "memory".
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    precision: str | None
    epilogue: str | None
    reduction: str | None
    is_transposed: bool
    arrangements: dict[str, str]
    alignments: dict[str, int]
    copied: tuple[str, ...]
    device: str
    implementation: str
    config: str | None
    rule: str
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
        if self.epilogue is not None:
            lines.append(f"  epilogue        {self.epilogue}")
        if self.reduction is not None:
            lines.append(f"  reduction       {self.reduction}")
        if self.is_transposed:
            lines.append("                  computed as out.T = b.T @ a.T: out is column-major")
        if self.copied:
            lines.append(f"                  copied between host and GPU: {', '.join(self.copied)}")
        config = f" {self.config}" if self.config else ""
        lines.append(f"  implementation  {self.implementation}{config}: {self.rule}")
        if self.fallback is not None:
            lines.append(f"                  or, for what cannot be split: {self.fallback}")
        width = max(map(len, self.rejected), default=0)
        lines += [f"    not {name:<{width}}  {reason}" for name, reason in self.rejected.items()]
        if self.blocks is not None:
            waves = ""
            if self.waves is not None:
                waves = f", {self.blocks_per_sm} at a time on an SM: {self.waves:.2f} waves"
            lines.append(f"  grid            {self.blocks} blocks of {self.threads} threads{waves}")
        if self.registers is not None:
            lines.append(
                f"  kernel          {self.registers} registers a thread, "
                f"{self.smem_bytes} bytes of shared memory a block"
            )
        else:
            lines.append("  kernel          not built yet")
        lines.append(
            f"  roofline        {self.gflops:.3g} GFLOP, {self.mbytes:.3g} MB: at least "
            f"{self.roofline_us:.3g} us ({self.bound} bound)"
        )
        return "\n".join(lines)

    def _misalignment(self, name: str) -> str:
        alignment = self.alignments.get(name, MAX_ALIGNMENT)
        return f" at {alignment} bytes" if alignment < MAX_ALIGNMENT else ""


def explain_route(route: Route) -> Explanation:
    """Explain a call whose operands are known."""
    return _explain(
        route.on_device.problem,
        route.device,
        route.decision,
        route.candidate,
        route.host_operands,
        route.epilogue,
    )


def _reduction_text(
    epilogue: EpilogueShape | None, problem: Problem, candidate: Candidate
) -> str | None:
    if epilogue is None or epilogue.reduction is None:
        return None
    if candidate.problem is problem:
        way = "fused: each block reduces its tile, a second kernel merges what they leave"
    else:
        way = "split: the matrix is stored, and reduced by another kernel"
    return f"{epilogue.reduction}, {way}"


def explain_shape(
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    *,
    batch: int = 1,
    out_dtype: str | None = None,
    implementation: Any = None,
    precision: str | None = None,
) -> Explanation:
    """What `gemm` would do with row-major (m, k) and (k, n) operands on the first GPU, and why.

    Args:
        m, n, k: sizes.
        dtype: of the operands.
        batch: how many products.
        out_dtype: of the result; None for dtype.
        implementation, precision: as `gemm` takes them.

    Raises:
        GpuUnavailableError: no GPU, and the simulator is not enabled.
        DtypeError, PrecisionError, UnknownImplementationError, UnsupportedProblemError: as `gemm`
            would.
    """
    problem = contiguous_problem(dtype, m, n, k, batch, out_dtype=out_dtype, precision=precision)
    device = device_facts(0)
    decision = choose(problem, device, implementation)
    return _explain(problem, device, decision, decision.candidates[0], ())


def _explain(
    problem: Problem,
    device: DeviceFacts,
    decision: Decision,
    candidate: Candidate,
    copied: tuple[str, ...],
    epilogue: EpilogueShape | None = None,
) -> Explanation:
    implementation, config = candidate.implementation, candidate.config
    blocks = implementation.block_count(config, candidate.problem) or None
    record = None
    if not device.is_simulated:
        record = implementation.built_record(config, candidate.problem, device.arch)
    blocks_per_sm = waves = None
    limits = sm_limits(device.arch)
    if record is not None and blocks is not None and limits is not None:
        blocks_per_sm = occupancy(
            limits, record.threads, record.registers, record.smem_bytes
        ).blocks
        waves = blocks / (device.sm_count * blocks_per_sm)
    own_tflops = device.peak_tflops[problem.scalar_dtype]
    peak_tflops = device.tensor_tflops.get(problem.arithmetic, own_tflops)
    compute_us = problem.flops / (peak_tflops * 1e6)
    memory_us = problem.bytes_moved / (device.memory_gbytes_per_s * 1e3)
    return Explanation(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
        precision=problem.precision,
        epilogue=str(epilogue) if epilogue else None,
        reduction=_reduction_text(epilogue, problem, candidate),
        is_transposed=problem.is_transposed,
        arrangements={name: getattr(problem, name).arrangement for name in ("a", "b", "c", "out")},
        alignments={"a": problem.a_alignment, "b": problem.b_alignment},
        copied=copied,
        device=device.name,
        implementation=implementation.name,
        config=str(config) if config is not None else None,
        rule=candidate.reason,
        fallback=implementation.fallback(candidate.problem),
        rejected=decision.rejected,
        blocks=blocks,
        threads=getattr(config, "threads", None),
        blocks_per_sm=blocks_per_sm,
        waves=waves,
        registers=record.registers if record else None,
        smem_bytes=record.smem_bytes if record else None,
        gflops=problem.flops / 1e9,
        mbytes=problem.bytes_moved / 1e6,
        roofline_us=max(compute_us, memory_us),
        bound="compute" if compute_us >= memory_us else "memory",
    )

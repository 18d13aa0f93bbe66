"""Explanation of a call: the kernels that compute it and why, in the terms of a tutorial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from dxgemm.gpu.occupancy import Occupancy
from dxgemm.gpu.roofline import MEMORY_LATENCY_NS, Roofline, tail_efficiency
from dxgemm.problem.layout import MAX_ALIGNMENT

MOST_LINES = 14  # of the short text; a time that is measured follows

Rows = list[tuple[str, str]]  # labels and texts


@dataclass(frozen=True, slots=True)
class Work:
    """The product that is computed, and the GPU that computes it.

    Attributes:
        m, n, k, batch: sizes of the kernel's problem; m and n are exchanged if is_transposed.
        dtype: dtype of a and b.
        out_dtype: dtype of c and out.
        precision: arithmetic that the call permits instead of the dtype's own; None for no other.
        modulus: number modulo which a result of integers is taken; 0 for none.
        epilogue: names of the functions that are applied to each element; None for no function.
        reduction: name of the reduction, and whether the kernel of the product computes it; None
            without a reduction.
        computed_as: one matrix of the rows, or columns, of a whole batch, or pieces; None if the
            matrices are computed as they are.
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
        is_simulated: True on numba's simulator, whose peaks mean nothing.
        sm_count: number of SMs of the GPU.
        flops: floating-point operations.
        bytes_moved: fewest bytes through device memory.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    precision: str | None
    modulus: int
    epilogue: str | None
    reduction: str | None
    computed_as: str | None
    symmetry: str | None
    complex_form: str | None
    is_transposed: bool
    arrangements: dict[str, str]
    alignments: dict[str, int]
    copied: tuple[str, ...]
    device: str
    is_named_gpu: bool
    is_simulated: bool
    sm_count: int
    flops: int
    bytes_moved: int

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        dtype = self.dtype if self.out_dtype == self.dtype else f"{self.dtype} to {self.out_dtype}"
        permitted = "" if self.precision is None else f", {self.precision} permitted,"
        if self.modulus:
            permitted = f" modulo {self.modulus}"
        return f"{batch}{self.m} x {self.n} x {self.k} {dtype}{permitted} on {self.device}"

    def rows(self) -> Rows:
        """Describe the operands, and what is made of their product."""
        layouts = []
        for name, kind in self.arrangements.items():
            alignment = self.alignments.get(name, MAX_ALIGNMENT)
            layouts.append(f"{name} {kind}")
            if alignment < MAX_ALIGNMENT:
                layouts[-1] += f" at {alignment} bytes"
        operands = ", ".join(layouts)
        if self.is_transposed:
            operands += "; computed as out.T = b.T @ a.T: out is column-major"
        if self.copied:
            operands += f"; copied between host and GPU: {', '.join(self.copied)}"
        return [
            ("operands", operands),
            ("computed as", _joined(self.computed_as, self.symmetry, self.complex_form)),
            ("epilogue", _joined(self.epilogue, self.reduction)),
        ]


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that is chosen, and those that are not.

    Attributes:
        implementation, config: the kernel and its config.
        slices: split-K slices, whose sums another kernel adds; 1 if k is whole.
        rule: reason for the choice.
        aligned: operands that are copied to aligned rows before they are multiplied.
        accuracy: rounding of the operands before they are multiplied, and the bound on the error;
            None if they are multiplied as they are and summed in the accumulator's dtype.
        fallback: kernel that takes over if the operands' values fail the validity check; None if
            there is no such check. `emulation_fallbacks` counts how often it took over.
        candidates: best config of each kernel that could compute the problem, by name, with its
            predicted time; the shortest first, which is the choice.
        rejected: by name of every other implementation, the reason why it is not used.
    """

    implementation: str
    config: str | None
    slices: int
    rule: str
    aligned: tuple[str, ...]
    accuracy: str | None
    fallback: str | None
    candidates: tuple[tuple[str, float], ...]
    rejected: dict[str, str]

    @property
    def kernel(self) -> str:
        """Name of the kernel, with its config."""
        return f"{self.implementation} {self.config}" if self.config else self.implementation

    def rows(self) -> Rows:
        """Describe the kernel that is chosen."""
        copies = f"from aligned copies of {' and '.join(self.aligned)}" if self.aligned else None
        check = f"if the validity check fails: {self.fallback}" if self.fallback else None
        return [
            ("implementation", _joined(f"{self.kernel}: {self.rule}", copies)),
            ("accuracy", _joined(self.accuracy, check)),
        ]

    def candidate_rows(self, most: int | None) -> Rows:
        """List the candidates with their times, a line for each or all in one."""
        if len(self.candidates) < 2:
            return []
        if most is None:
            width = max(len(name) for name, _ in self.candidates)
            texts = [f"{name:<{width}}  {us:>10.4g} us" for name, us in self.candidates]
        else:
            names = [f"{name.partition(' ')[0]} {us:.4g}" for name, us in self.candidates[:most]]
            rest = len(self.candidates) - len(names)
            texts = [", ".join(names) + " us" + (f", and {rest} more" if rest else "")]
        return _labelled("candidates", texts)

    def other_rows(self, most: int | None) -> Rows:
        """List the reasons against the kernels that are no candidates, with the kernels' names."""
        candidates = {name.partition(" ")[0] for name, _ in self.candidates}
        groups: dict[str, list[str]] = {}
        for name, reason in self.rejected.items():
            if name not in candidates:
                groups.setdefault(reason, []).append(name)
        texts = []
        for reason, names in sorted(groups.items(), key=lambda group: -len(group[1]))[:most]:
            rest = len(names) - 1 if most is not None else 0
            listed = f"{names[0]} and {rest} more" if rest else ", ".join(names)
            texts.append(f"{listed}: {reason}")
        if len(texts) < len(groups):
            texts.append("the reasons against all others: .full(), or --all")
        return _labelled("not", texts)


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks of the launch of the product's kernel, and how the SMs hold them.

    Attributes:
        blocks, threads: grid size and block size; None if the implementation does not tell.
        tiles: tiles of the result, times split_k; None if the implementation does not tell.
        split_k: blocks of a cluster that share the k of a tile.
        tile_intensity: FLOP per byte that a block reads; None without tiles in shared memory.
        registers: registers per thread; None until the kernel is built.
        smem_bytes: shared memory per block; None until the kernel is built.
        per_sm: resident blocks and warps per SM, and what limits them; None until the kernel is
            built.
        waves: waves in which the tiles of the result are computed; the last one counts as the
            fraction of it that is filled. None until the kernel is built.
        bytes_in_flight: bytes that the pipelines of the blocks on an SM load while they multiply;
            None without a pipeline, and until the kernel is built.
        bytes_in_flight_needed: bytes in flight per SM that use the full memory bandwidth.
    """

    blocks: int | None
    threads: int | None
    tiles: int | None
    split_k: int
    tile_intensity: float | None
    registers: int | None
    smem_bytes: int | None
    per_sm: Occupancy | None
    waves: float | None
    bytes_in_flight: int | None
    bytes_in_flight_needed: float

    def rows(self, sm_count: int, is_full: bool) -> Rows:
        """Describe the launch."""
        launch = "" if self.blocks is None else f"{self.blocks} blocks of {self.threads} threads"
        split = f"{self.split_k} blocks share the k of a tile, and add up"
        kernel = "the kernel is not built yet"
        if self.registers is not None:
            kernel = f"{self.registers} registers per thread, {self.smem_bytes} bytes of shared "
            kernel += "memory per block"
        rows = [("launch", _joined(launch, split if self.split_k > 1 else None, kernel))]
        if is_full and self.tile_intensity is not None:
            text = f"{figure(self.tile_intensity)} FLOP per byte that a full tile reads, most of "
            rows.append(("tile", f"{text}it from the L2 cache"))
        if self.per_sm is not None:
            sm = self.per_sm
            held = f"{sm.blocks} block{'' if sm.blocks == 1 else 's'}"
            text = f"{sm.resident_warps} of {sm.most_warps} warps per SM, as {held}; more would "
            rows.append(("occupancy", f"{text}not fit its {' and '.join(sm.limiters)}"))
        if self.waves is not None:
            rows.append(("waves", f"{self.waves:.2f}: {self._waves_text(self.waves, sm_count)}"))
        if is_full and self.bytes_in_flight is not None:
            text = f"{self.bytes_in_flight} bytes on their way to an SM; full bandwidth over "
            text += f"{MEMORY_LATENCY_NS:.0f} ns of latency takes {self.bytes_in_flight_needed:.0f}"
            rows.append(("in flight", text))
        return rows

    def _waves_text(self, waves: float, sm_count: int) -> str:
        if waves <= 1:
            return f"all blocks run at once, on {min(self.tiles or 0, sm_count)} of {sm_count} SMs"
        return (
            f"{self.tiles} tiles in {math.ceil(waves)} waves; the last one takes as long as a full "
            f"one, so that {tail_efficiency(waves):.0%} of the time is used"
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time of the product, as far as it can be told before.

    Attributes:
        us: predicted time; None if it is not known.
        roofline: lower bounds of the time. On numba's simulator they mean nothing.
        speeds: source of the speeds that predictions are made from; None on the simulator.
    """

    us: float | None
    roofline: Roofline
    speeds: str | None

    def rows(self, is_full: bool) -> Rows:
        """Describe the lower bounds, and the predicted time."""
        bounds = self.roofline
        text = (
            f"{figure(bounds.compute_us)} us at {figure(bounds.peak_tflops)} TFLOP/s, "
            f"{figure(bounds.memory_us)} us at {figure(bounds.memory_gbytes_per_s)} GB/s: at least "
            f"{figure(bounds.time_us)} us ({bounds.bound} bound)"
        )
        rows = [("roofline", text)]
        if self.us is not None:
            speeds = self.speeds if is_full else None
            rows.append(("predicted", _joined(self.against_roofline(self.us), speeds)))
        return rows

    def against_roofline(self, time_us: float) -> str:
        """Format a time of this product, with the fraction of the roofline that it reaches."""
        return f"{figure(time_us)} us, {self.roofline.time_us / time_us:.0%} of the roofline"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of how one GEMM is computed. Its text has at most 15 lines; `full` has all.

    Attributes:
        work: the product that is computed, and the GPU.
        choice: the kernel of the product, the reason for it, and the other kernels.
        steps: kernels of the call in order, with the operands and buffers that they use; empty for
            a product in pieces.
        occupancy: blocks of the launch, and how the SMs hold them.
        prediction: roofline and predicted time.
    """

    work: Work
    choice: Choice
    steps: tuple[str, ...]
    occupancy: Grid
    prediction: Prediction

    @property
    def implementation(self) -> str:
        """Name of the implementation that is chosen."""
        return self.choice.implementation

    @property
    def config(self) -> str | None:
        """Config of the implementation; None if it has none."""
        return self.choice.config

    @property
    def title(self) -> str:
        """The product and its kernel in one line."""
        return f"gemm {self.work} by {self.choice.kernel}"

    def as_dict(self) -> dict[str, Any]:
        """Return the records and their attributes as dictionaries, for JSON."""
        values = asdict(self)
        names = ("compute_us", "memory_us", "time_us", "bound", "intensity", "ridge")
        derived = {name: getattr(self.prediction.roofline, name) for name in names}
        values["prediction"]["roofline"] |= derived
        return values

    def full(self) -> str:
        """Return the whole text: each kernel, with its time or the reason why it is not used."""
        return self._text(self._rows(is_full=True))

    def __str__(self) -> str:
        return self._text(self._rows(is_full=False))

    def _repr_html_(self) -> str:
        """Show the text as a table in a notebook, and the whole of it on a click."""
        cells = (
            f"<tr><th>{label}</th><td style='text-align: left'>{escape(text)}</td></tr>"
            for label, text in self._rows(is_full=False)
        )
        whole = f"<details><summary>all</summary><pre>{escape(self.full())}</pre></details>"
        return f"<b>gemm {escape(str(self.work))}</b><table>{''.join(cells)}</table>{whole}"

    def _text(self, rows: Rows) -> str:
        return "\n".join([f"gemm {self.work}", *(f"  {name:<16}{text}" for name, text in rows)])

    def _rows(self, is_full: bool) -> Rows:
        """Rows of the text; of the kernels that are not used, as many as it has lines for."""
        work, choice, bounds = self.work, self.choice, self.prediction.roofline
        steps = self.steps if len(self.steps) > 1 else ()
        if steps and not is_full:
            steps = (" | ".join(step.partition(" ")[0] for step in steps),)
        cost = f"{figure(work.flops / 1e9)} GFLOP and at least {figure(work.bytes_moved / 1e6)} MB"
        if not work.is_simulated:
            cost += f": {figure(bounds.intensity)} FLOP per byte; from {figure(bounds.ridge)} on, "
            cost += "arithmetic takes longer than memory"
        named = "facts from its datasheet; all times are predicted" if work.is_named_gpu else ""
        first = [("gpu", named), *work.rows(), *choice.rows(), *_labelled("kernels", steps)]
        first = [row for row in first if row[1]]
        predicted = [("roofline", "none: the simulator is no GPU")]
        if not work.is_simulated:
            predicted = self.prediction.rows(is_full)
        last = [
            ("work", cost),
            *self.occupancy.rows(work.sm_count, is_full),
            *predicted,
        ]
        first += choice.candidate_rows(None if is_full else 4)
        left = MOST_LINES - 2 - len(first) - len(last)  # besides the title, and what `full` tells
        return first + choice.other_rows(None if is_full else max(0, min(left, 3))) + last


def figure(value: float) -> str:
    """Format a number with three significant digits, or as a whole number from 1000 on."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _joined(*texts: str | None) -> str:
    return "; ".join(filter(None, texts))


def _labelled(label: str, texts: Sequence[str]) -> Rows:
    return [("" if number else label, text) for number, text in enumerate(texts)]

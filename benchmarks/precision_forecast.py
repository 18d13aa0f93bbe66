"""What float64 by int8 residues keeps of its operands, and would take on GPUs it does not run on.

The share of int8's peak that products reach there is taken to be that of the GPU measured.
"""

from __future__ import annotations

from gpus import FACTS, WITHOUT_FLOAT64
from result_files import Results, extras

from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels.residues import LOST_BITS
from dxgemm.handwritten.parts.moduli import moduli_count, operand_bits
from dxgemm.problem.define import contiguous_problem

COUNTS = range(12, 19)
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
# For an element: bytes of operands that are read twice and of a result; a residue's, which are
# written and read; and operations in float64.
BYTES, REMAINDER_BYTES, FLOPS = 40, 4, 204


def bits_rows() -> list[list[str]]:
    """Bits p of the operands, with the bound on the error, by the number of moduli and k."""
    lines = []
    for count in COUNTS:
        bits = [operand_bits(count, k) for k in DEPTHS]
        lines.append([str(count), *(f"{p}, 2**{LOST_BITS - p}" for p in bits)])
    automatic = [moduli_count(contiguous_problem("float64", 1, 1, k)) for k in DEPTHS]
    return [*lines, ["automatic", *map(str, automatic)]]


def forecast_rows(results: Results) -> list[list[str]]:
    """TFLOP/s by GPU, over its peak in float64; none if none was measured."""
    facts = FACTS.get(results["machine_info"]["gpu"]["name"])
    rows = [
        row for row in extras(results) if row["dtype"] == "float64" and row["way"] == "emulated"
    ]
    squares = [row for row in rows if row["m"] == row["n"] == row["k"] and not row["is_native"]]
    if facts is None or not squares:
        return []
    row = max(squares, key=lambda row: float(row["m"]))
    n, seconds = row["m"], row["gpu_us"] * 1e-6
    count = moduli_count(contiguous_problem("float64", n, n, n))
    share = _product_seconds(n, count, facts) / (seconds - _other_seconds(n, count, facts))
    lines = []
    for device in (facts, *WITHOUT_FLOAT64):
        total = _product_seconds(n, count, device) / share + _other_seconds(n, count, device)
        tflops, peak = 2e-12 * n**3 / total, device.peak_tflops["float64"]
        rates = device.tensor_tflops["int8"], peak, device.memory_gbytes_per_s
        name = f"{device.name}, measured" if device is facts else device.name
        lines.append([name, str(n), *(f"{x:.3g}" for x in (*rates, share, tflops, tflops / peak))])
    return lines


def _product_seconds(n: int, count: int, device: DeviceFacts) -> float:
    """Of the products, at int8's peak."""
    return 2e-12 * count * n**3 / device.tensor_tflops["int8"]


def _other_seconds(n: int, count: int, device: DeviceFacts) -> float:
    """Of making residues and of finding the result by them, at the peaks."""
    moved = (BYTES + REMAINDER_BYTES * count) * n**2 / device.memory_gbytes_per_s
    return 1e-9 * moved + 1e-12 * FLOPS * n**2 / device.peak_tflops["float64"]

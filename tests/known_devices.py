"""Facts of GPUs, for decisions and predictions without one."""

from __future__ import annotations

from dxgemm.gpu.facts import facts_of

H200 = facts_of("NVIDIA H200", (9, 0), sm_count=132, clock_hz=1.98e9, memory_gbytes_per_s=4800.0)
H100 = facts_of(
    "NVIDIA H100 80GB HBM3", (9, 0), sm_count=132, clock_hz=1.98e9, memory_gbytes_per_s=3352.0
)
A100 = facts_of(
    "NVIDIA A100-SXM4-80GB", (8, 0), sm_count=108, clock_hz=1.41e9, memory_gbytes_per_s=2039.0
)

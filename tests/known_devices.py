"""Facts of GPUs, for decisions and predictions without one."""

from __future__ import annotations

from dataclasses import replace

from dxgemm._speeds import PACKAGED, read_table
from dxgemm.runtime.device import DeviceFacts

# Without a table of speeds: predictions go by what the kernel files say.
H200 = DeviceFacts(
    name="NVIDIA H200",
    arch="sm_90a",
    sm_count=132,
    peak_tflops={"float32": 66.9, "float64": 33.5, "int32": 33.5},
    memory_gbytes_per_s=4800.0,
)

TABLE = read_table(PACKAGED / "nvidia-h200.json")
TUNED_H200 = replace(H200, speeds=TABLE.speeds, trees=TABLE.trees)

"""Facts of the GPUs that results are committed for, where none is at hand.

Source: NVIDIA's datasheets; the clock is the highest one.
"""

from __future__ import annotations

from dxgemm.gpu.facts import DeviceFacts, facts_of

_KNOWN = (
    facts_of("NVIDIA H200", (9, 0), sm_count=132, clock_hz=1.98e9, memory_gbytes_per_s=4800.0),
    facts_of(
        "NVIDIA H100 80GB HBM3", (9, 0), sm_count=132, clock_hz=1.98e9, memory_gbytes_per_s=3352.0
    ),
)
FACTS: dict[str, DeviceFacts] = {facts.name: facts for facts in _KNOWN}

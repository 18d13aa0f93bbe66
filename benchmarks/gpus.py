"""Facts of GPUs where none is at hand: by name, of those that results are committed for.

Source: NVIDIA's datasheets and the Ada and RTX Blackwell architecture whitepapers; the clock is the
highest one.
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

# Whose float64 is 1/64 of their float32.
WITHOUT_FLOAT64 = (
    facts_of("NVIDIA L40S", (8, 9), sm_count=142, clock_hz=2.52e9, memory_gbytes_per_s=864.0),
    facts_of("RTX 4090", (8, 9), sm_count=128, clock_hz=2.52e9, memory_gbytes_per_s=1008.0),
    facts_of("RTX 5090", (12, 0), sm_count=170, clock_hz=2.407e9, memory_gbytes_per_s=1792.0),
)

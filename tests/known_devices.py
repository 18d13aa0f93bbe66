"""Facts of GPUs, for decisions and predictions without one."""

from dxgemm.gpu.cards import find_card
from dxgemm.gpu.facts import facts_of

H200, H100, A100 = (find_card(name).facts for name in ("H200", "H100", "A100"))

# Cards before Ampere, without cp.async.
T4, V100 = (
    facts_of(
        name,
        capability,
        sm_count=sm_count,
        clock_hz=1.5e9,
        memory_gbytes_per_s=memory_gbytes_per_s,
        smem_bytes_per_block=smem_kib << 10,
    )
    for name, capability, sm_count, memory_gbytes_per_s, smem_kib in (
        ("Tesla T4", (7, 5), 40, 320.0, 64),
        ("Tesla V100-SXM2-32GB", (7, 0), 80, 900.0, 96),
    )
)

"""Facts of some cards, to choose kernels for them without one.

Source: NVIDIA's datasheets and architecture whitepapers, Ampere to Blackwell. Clocks are those that
drivers report, the highest ones; datasheets rate tensor cores from Hopper on at lower ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dxgemm.errors import UnknownGpuError, shown
from dxgemm.gpu.facts import DeviceFacts, facts_of
from dxgemm.gpu.occupancy import sm_limits


@dataclass(frozen=True)
class Card:
    """Figures of a card.

    Attributes:
        name: name that the driver gives.
        capability: compute capability, times ten.
        sm_count: number of SMs.
        clock_mhz: boost clock.
        memory_gbytes_per_s: peak bandwidth of device memory.
    """

    name: str
    capability: int
    sm_count: int
    clock_mhz: int
    memory_gbytes_per_s: float

    @cached_property
    def facts(self) -> DeviceFacts:
        """Facts of the card; its shared memory per block follows from the architecture."""
        limits = sm_limits(f"sm_{self.capability}")
        assert limits is not None, f"the limits of an SM of {self.name} are not known"
        return facts_of(
            self.name,
            divmod(self.capability, 10),
            sm_count=self.sm_count,
            clock_hz=self.clock_mhz * 1e6,
            memory_gbytes_per_s=self.memory_gbytes_per_s,
            smem_bytes_per_block=limits.smem_bytes_per_block,
        )


CARDS = {
    "RTX 3080": Card("NVIDIA GeForce RTX 3080", 86, 68, 1710, 760.0),
    "RTX 3090": Card("NVIDIA GeForce RTX 3090", 86, 82, 1695, 936.0),
    "RTX A6000": Card("NVIDIA RTX A6000", 86, 84, 1800, 768.0),
    "A10": Card("NVIDIA A10", 86, 72, 1695, 600.0),
    "RTX 4060": Card("NVIDIA GeForce RTX 4060", 89, 24, 2460, 272.0),
    "RTX 4060 Ti": Card("NVIDIA GeForce RTX 4060 Ti", 89, 34, 2535, 288.0),
    "RTX 4090": Card("NVIDIA GeForce RTX 4090", 89, 128, 2520, 1008.0),
    "RTX 5080": Card("NVIDIA GeForce RTX 5080", 120, 84, 2617, 960.0),
    "RTX 5090": Card("NVIDIA GeForce RTX 5090", 120, 170, 2407, 1792.0),
    "RTX PRO 6000": Card(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 2617, 1792.0
    ),
    "RTX 6000 Ada": Card("NVIDIA RTX 6000 Ada Generation", 89, 142, 2505, 960.0),
    "L4": Card("NVIDIA L4", 89, 58, 2040, 300.0),
    "L20": Card("NVIDIA L20", 89, 92, 2520, 864.0),
    "L40S": Card("NVIDIA L40S", 89, 142, 2520, 864.0),
    "A100 SXM 80GB": Card("NVIDIA A100-SXM4-80GB", 80, 108, 1410, 2039.0),
    "H100 SXM": Card("NVIDIA H100 80GB HBM3", 90, 132, 1980, 3352.0),
    "H100 PCIe": Card("NVIDIA H100 PCIe", 90, 114, 1755, 2039.0),
    "H200 SXM": Card("NVIDIA H200", 90, 132, 1980, 4800.0),
    "GH200": Card("NVIDIA GH200 480GB", 90, 132, 1980, 4000.0),
    "B200": Card("NVIDIA B200", 100, 148, 1965, 7700.0),
}  # fmt: skip


def find_card(name: Any) -> Card:
    """Find a card by any part of its names that has the model: "4090", "rtx 4090", "H100 PCIe".

    The first card of a model is the one that is meant if no more is said: "H100" is the SXM one.

    Raises:
        UnknownGpuError: there is no such card.
    """
    words = set(_words(name)) if isinstance(name, str) else set()
    for short, card in CARDS.items():
        model, *others = _words(f"{short} {card.name}")
        if model in words and words <= {model, *others}:
            return card
    raise UnknownGpuError(
        f"explain: no facts of a GPU {shown(name)} are known; there are {', '.join(CARDS)}."
    )


def _words(name: str) -> list[str]:
    """Words of a name, where "RTX4090" is "4090", "SXM4" is "sxm" and "80 GB" is "80gb"."""
    plain = re.sub(r"rtx|(?<=sxm)\d", " ", name.lower())
    return re.findall(r"\w+", re.sub(r"(?<=\d) gb", "gb", plain))

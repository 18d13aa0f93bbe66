"""Facts of GPUs, for decisions and predictions without one."""

from __future__ import annotations

from dxgemm.gpu.cards import find_card

H200, H100, A100 = (find_card(name).facts for name in ("H200", "H100", "A100"))

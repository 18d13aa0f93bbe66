"""cuBLASDx: NVIDIA's device functions for a tile of a GEMM, and kernels on top of them."""

from dxgemm.handwritten.parts.sources import keep_sources

keep_sources(__path__)

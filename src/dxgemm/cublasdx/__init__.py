"""cuBLASDx: NVIDIA's device functions for a tile of a GEMM, and kernels on top of them."""

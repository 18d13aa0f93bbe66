"""cuBLASDx pipelines: NVIDIA's device functions for a tile of a GEMM, and kernels made of them."""

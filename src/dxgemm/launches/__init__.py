"""GEMMs of several kernels, and of cuBLAS, as one launch each."""

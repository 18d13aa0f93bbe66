"""Launches of GEMMs: one kernel, a series of kernels, or cuBLAS."""

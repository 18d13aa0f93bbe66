"""Hand-written GEMM kernels in numba-cuda, one technique a file, simplest first.

    coalesced       one thread an element of the result
    thread_tile_2d  a shared-memory tile a block, a register tile a thread

Every file can be read, and lifted out, alone: it imports the standard library, numpy and numba, and
defines `Config`, the configs to choose from, `make_kernel(config, dtype)`, `supports(problem)` and
`launch_grid(config, problem)`. All kernels take the same parameters: sizes and strides are run-time
arguments, counted in elements, so that one build serves every shape and arrangement.
"""

if __name__ != "dxgemm.handwritten":
    raise ImportError(
        f"import this package as dxgemm.handwritten, not as {__name__}: a second copy would "
        "compile every kernel again."
    )

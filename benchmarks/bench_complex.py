"""GPU time of complex products, against cuBLAS's own complex ones.

Each row is the automatic choice, in the dtype's own arithmetic, by three products, and emulated;
`vs_cublas` is the time of cublasCgemm or cublasZgemm over it. Operations are counted as 8 m n k.
The cuBLASDx pipeline, which is used only when named, has rows of its own.
Rows with an epilogue have it fused; cuBLAS is then followed by one kernel of `cupy.fuse`, and
`vs_plain` is the time of the same product without it over theirs.
"""

from cases import grid, own
from fused import FusedCase, fused, plain, separate_kernels
from measuring import CUBLAS, OWN, bench

DTYPES, PLAIN = ["complex64", "complex128"], "plain"
SQUARES = [256, 512, 1024, 2048, 4096, 8192]
OTHERS = [
    # m, n, k: odd sizes; rectangles; small k; few rows
    (257, 257, 257), (1000, 1003, 517), (2047, 2049, 2051), (4097, 4095, 4099),
    (512, 8192, 2048), (8192, 512, 2048), (256, 256, 16384), (16384, 1024, 512),
    (4096, 4096, 16), (4096, 4096, 64), (8192, 8192, 128),
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096),
]  # fmt: skip
BATCHED = [(4, 100_000), (8, 50_000), (16, 20_000), (32, 5_000), (64, 2_000)]
BATCHES = [(n, n, n, batch) for n, batch in BATCHED]
CASES = []
for dtype in DTYPES:
    CASES += grid(dtype=dtype, size=[*SQUARES, *OTHERS[:-3]])
    CASES += grid(dtype=dtype, size=OTHERS[-3:], arrangement=["row_row_row", "row_col_row"])
CASES += grid(dtype=DTYPES, size=BATCHES)
CASES += grid(dtype=DTYPES, precision=["3m", "emulated"], size=SQUARES[2:])
ENDS = ["bias", "bias | squared_magnitude"]
FUSED_CASES = grid(FusedCase, dtype=DTYPES, size=SQUARES[:5], epilogue=ENDS)

native = own(CUBLAS, precision=None)
bench_complex = bench(CASES, {OWN: own()}, {CUBLAS: native}, budget_s=0.1)
bench_complex_epilogue = bench(
    FUSED_CASES,
    {OWN: fused()},
    {PLAIN: plain(), CUBLAS: separate_kernels},
    vs={"vs_plain": PLAIN},
    budget_s=0.1,
)

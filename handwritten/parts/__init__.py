"""Parts that kernels share: instructions, loads, main loops, stores, and the unroller.

intrinsics, mma, hopper           instructions that numba lacks
unroll                            loops over registers, unrolled before numba compiles
operands, widening, cached_copy   how elements lie in memory, and how they become registers
tiles, async_tiles, batch_tiles   tiles of a and b in shared memory
mma_operands                      the same for tensor cores
tensor_map, wgmma_*               TMA, its ring of stages, the main loop and the store of wgmma
tile_store, mma_store             from the accumulators to the result
epilogue, elementary              the caller's function, and what it is made of
reduction, reduce_fragments       partial results of rows and columns
emulation, emulated_mainloop, moduli   emulated float32 and float64
"""

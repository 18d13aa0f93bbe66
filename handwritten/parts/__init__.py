"""Parts that kernels share: instructions, loads, main loops, stores, configs, and the unroller.

kernel, configs                   a kernel's record, and the configs of rungs
unroll                            kernels rewritten: loops, casts, steps, operands
intrinsics, mma, hopper           instructions that numba lacks
operands, widening, cached_copy   how elements lie in memory, and how they become registers
tiles, async_tiles, batch_tiles   tiles of a and b in shared memory
mma_operands                      the same for tensor cores
tensor_map, wgmma_*               TMA, the ring's helpers, tf32 from registers, the store of wgmma
tile_store, mma_store             from the accumulators to the result
epilogue, elementary              the caller's function, and what it is made of
reduction, reduce_fragments       partial results of rows and columns
emulation, emulated_mainloop, moduli   emulated float32 and float64
"""

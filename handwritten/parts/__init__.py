"""Parts that kernels share: instructions, loads, main loops, stores, configs, and the unroller.

kernel, configs                   the record of a kernel, and the configs of rungs
sources                           texts of kernel files, kept as they are imported
unroll                            rewriting of kernels: loops, casts, steps, operands
intrinsics, mma, hopper           instructions that numba lacks
operands, widening                layouts of operands, conversion of elements
tiles, async_tiles                tiles of a and b in shared memory
batch_*                           many small matrices: tiles, and the parts of the frame `resident`
group_table                       the table of a group, and the search in it
mma_operands                      tiles and fragments for the tensor cores of mma.sync
ring                              copies to the stages of the frame `ring`
line_*, thread_mainloop, complex_mma   its main loops, and the tiles that they read
tensor_map, wgmma_*               TMA, the ring of stages, main loops, the store of a tile
chunk_store, rounded_store        that store, by chunk: through shared memory as sums, or rounded
place, tile_order                 which block takes which tile, and which k
store, result                     what becomes of a tile's sums, and what stores are told
triangle                          tiles of symmetric results, and their mirror images
skinny_*                          few rows: tiles, the ring, main loops, sums of a cluster
groups, chunks, elements          which part of a matrix a thread has; the store of one element
fragment, tile_store, addend      elements of a thread, and their store: alpha * sums + beta * c
epilogue, elementary              the caller's function, and the functions it may call
reduction, reduce_fragments       partial results of rows and columns
emulation, emulated_mainloop, moduli   emulated float32 and float64
"""

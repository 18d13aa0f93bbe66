"""Kernels in production that are no rungs of the ladder.

small_batch, tensor_batch   batches of small matrices
grouped                     problems of different sizes in one launch
widening_tile               float16, bfloat16 and int8 in any layout
add_slices                  the sum of split-K's workspace
reduce_tiles, merge_partials   reductions of the result
split, split_verdict, split_wgmma, guarded   emulated float32, and what replaces it
residues, split_int8, reconstruct            emulated float64
"""

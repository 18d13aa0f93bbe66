"""Kernels of production.

tuned                       float32 and float64, rung 12 of the ladder
tensor_core, tensor_core_tf32   float64 and tf32 on tensor cores, rung 13
wgmma                       half precision and tf32 on Hopper, rung 14
wgmma_float8                float8 on Hopper, with promoted sums and scales of blocks
tensor_tile_float8          float8 from Ada on, with promoted sums
small_batch, tensor_batch   batches of small matrices
half_batch                  the same in float16 and bfloat16
complex_batch               the same in complex64 and complex128, read in place
complex_tile                complex64 of other sizes, read in place
complex_tensor_core         complex128 of any size on tensor cores, read in place
skinny_wgmma, skinny_fma    few rows or columns, in half precision and int8, in float32
skinny_shifted              the first of them, rows of odd width
gemv                        one row or a few, by elements, of odd width too
grouped                     problems of different sizes in one launch
group_offsets               the table of a group whose sizes are on the device
tensor_tile, shifted_tile   float16 and bfloat16 on tensor cores, from Ampere on
grouped_tensor_tile         the same, problems of different sizes in one launch
grouped_wgmma               the same on Hopper, groups of rows by offsets
grouped_wgmma_k, group_maps   the same, groups of k by offsets, and their tensor maps
align_rows, scatter_rows    copies of rows, to aligned and to indexed ones
clean_triangle              copies of triangular operands, with zeros off the triangle
complex_copy, complex_sum   complex operands for real products, and results made of several
widening_tile               float16, bfloat16 and int8 in any layout, outside tensor cores
add_slices                  the sum of split-K's workspace
reduce_tiles, merge_partials   reductions of the result
decompose, validity_check, emulated_float32, native_fallback   emulated float32 (fp16x2)
residues, emulated_float64, reconstruct                        emulated float64 (Ozaki II)
"""

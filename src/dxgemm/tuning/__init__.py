"""Measuring what kernels reach on a GPU, for the table that the automatic choice goes by.

`shapes` says what to measure, `measure` does it, `fit` makes a `dxgemm._speeds.Speed` for each
config of it, `observations` keeps what was measured, so that a search can be taken up again;
`trees` learns from the whole what is the best of which problems.
"""

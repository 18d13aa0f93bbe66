"""Measuring what kernels reach on a GPU, for the tables that the choice goes by.

`workloads` says what to measure, `measure` does it, `observations` keeps it, so that a search can
be taken up again, and `fit` makes a `dxgemm.choice.tables.Table` of it.
"""

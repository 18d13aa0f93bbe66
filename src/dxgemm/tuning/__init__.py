"""Tuning: measurements of kernels on a GPU, for the tables that the choice uses.

`workloads` has the problems to measure, `measure` times the candidates, `observations` keeps the
times, so that a search can be continued, and `fit` makes a `dxgemm.choice.tables.Table` of them.
"""

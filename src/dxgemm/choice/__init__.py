"""Which kernel computes a problem, with which config, and why.

`legality` says what a kernel can compute, with reasons; `model` predicts the time of every legal
candidate; `residual` corrects the few best by what was measured; `tables` holds what a chip was
measured to reach; `selection` takes the candidate of the shortest time, which is the number that
`dxgemm.explain` prints.
"""

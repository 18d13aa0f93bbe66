"""Choice of a kernel and its config for a problem, with the reasons.

`legality` knows which problems a kernel can compute, and why not others; `model` predicts the time
of every legal candidate; `residual` corrects the predictions by measurements; `tables` holds the
measured speeds of a chip; `selection` takes the candidate with the shortest predicted time, which
`dxgemm.explain` prints.
"""

"""Lowering: the program of kernels that computes a problem as a candidate of the choice has it."""

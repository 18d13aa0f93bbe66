"""Rungs of the ladder: one technique a file, each grown from the one before."""

"""Rungs of the ladder: one technique per file, each grown from the one before."""

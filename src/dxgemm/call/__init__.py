"""Calls: from the arrays of a call to its launch."""

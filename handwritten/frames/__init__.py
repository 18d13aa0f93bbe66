"""Frames: the text of a family of kernels, once, with parts to be named by each kernel."""

"""Products of CuPy and torch by dxgemm's kernels, in code that is left as it is."""

from dxgemm.drop_in.routing import Patch, Report, patch

__all__ = ["Patch", "Report", "patch"]

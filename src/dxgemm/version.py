"""Version of dxgemm."""

__version__ = "0.1.0"

"""Command line: `dxgemm`, also `python -m dxgemm`. Each command has a file; `app` joins them."""

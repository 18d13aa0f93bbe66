"""The command line: `dxgemm`, also `python -m dxgemm`. One file a command; `app` joins them."""

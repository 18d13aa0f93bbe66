"""`python -m dxgemm` is the same as `dxgemm`."""

from dxgemm.cli.app import main

main()

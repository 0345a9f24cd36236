"""`python -m dure.cli` is `dure`."""

from dure.cli import main

main()

"""`python -m byov` is `byov`."""

from byov.cli import main

main()

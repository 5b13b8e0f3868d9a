"""`python -m quped`."""

from quped.cli import main

main()

"""``python -m setsquare``."""

from setsquare.cli.app import main

main()

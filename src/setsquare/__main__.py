"""``python -m setsquare``."""

from setsquare.cli import main

main()

"""``python -m setsquare``."""

from setsquare.cli.arguments import main

main()

"""``python -m setsquare``."""

from setsquare.cli.start import main

main()

"""`python -m aotair`: the command line."""

from .cli import main

main(prog_name="aotair")

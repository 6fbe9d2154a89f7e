"""What a command writes: nothing in it is obeyed by the terminal, whoever wrote the names that it prints."""

import click

from aotair_runtime.errors import shown

_silent = False


def only_rank_0(rank: int) -> None:
    """From now on, of several ranks that make one command together, only the first writes."""
    global _silent
    _silent = rank != 0


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text with its control characters escaped."""
    if not _silent:
        click.echo(shown(str(text)), nl=nl, err=err)

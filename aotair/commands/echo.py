"""What a command writes: nothing in it is obeyed by the terminal, whoever wrote the names that it prints."""

import click

from aotair_runtime.errors import shown


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text with its control characters escaped."""
    click.echo(shown(str(text)), nl=nl, err=err)

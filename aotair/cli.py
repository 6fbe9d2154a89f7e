"""The command `aotair`: what a user can mend is one message and status 1, what is our fault keeps its traceback."""

import sys

import click

import aotair_runtime
from aotair_runtime.errors import AotairError

from .commands import building, chatting, comparing, debugging, judging, profiling, running
from .commands.echo import echo


class _Group(click.Group):
    """Turns refusals into one message, and an interruption into one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AotairError as error:
            echo(f"error: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            echo("interrupted: nothing was written", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            sys.stderr.close()
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            echo(f"error: {error.filename}: {error.strerror}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(aotair_runtime.__version__, prog_name="aotair")
@click.option("--debug", is_flag=True, help="Log what each pass does, and the graph where it changed.")
def main(debug: bool) -> None:
    """Build PyTorch models ahead of time, and replay them."""
    if debug:
        import logging

        from .log import logger

        logger.setLevel(logging.DEBUG)


for _command in (
    building.build,
    building.explain,
    building.plan,
    building.buckets,
    building.init,
    building.schema,
    running.inspect,
    running.run,
    running.verify,
    running.bench,
    profiling.profile,
    comparing.diff,
    debugging.debug,
    judging.doctor,
    judging.sign,
    chatting.chat,
):
    main.add_command(_command)


if __name__ == "__main__":
    main()

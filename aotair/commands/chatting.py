"""The command that talks with an artifact."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

import aotair_runtime
from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import mesh_text

from .echo import echo
from .options import ARTIFACT, DEVICE


@click.command()
@ARTIFACT
@click.argument("message", required=False)
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Of one answer.")
@click.option("--temperature", type=float, help="0: the likeliest token each time  [default: as the model says, or 0]")
@click.option("--top-p", type=float, help="Draw from the likeliest tokens that have this probability together.")
@click.option("--top-k", type=int, help="Draw from that many likeliest tokens; 0: from all.")
@click.option("--seed", type=int, help="The same seed draws the same tokens.")
@click.option("--speed", is_flag=True, help="Say after each answer how fast it came.")
@DEVICE
def chat(
    artifact: Path,
    message: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    speed: bool,
    device: str | None,
) -> None:
    """Talk with ARTIFACT, a language model: a line is a message, /clear begins anew, /exit or Ctrl-D ends. A MESSAGE,
    or what is piped in, is answered alone."""
    from ..chat.conversation import Conversation
    from ..chat.generate import Generator
    from ..chat.sampling import Sampler
    from ..chat.tokenizer import Tokenizer

    with aotair_runtime.load(artifact, device=device, enable_output_clone=True, capture="lazy") as model:
        if model.program.mesh:
            raise AotairError(
                "aotair chat is for artifacts of one rank",
                where=str(artifact),
                expected="no mesh",
                got=mesh_text(model.program.mesh),
                fix="build the recipe with --set mesh={}, or serve it: aotair.serving.ray",
            )
        tokenizer = Tokenizer(artifact, model.program)
        sampling = tokenizer.sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
        talk = Conversation(tokenizer, Generator(model), Sampler(sampling), system, max_tokens)
        for line in _messages() if message is None else (message,):
            if line == "/clear":
                talk.clear()
                continue
            start, count = time.perf_counter(), talk.made
            for piece in talk.say(line):
                echo(piece, nl=False)
            echo()
            if speed:
                seconds, made = time.perf_counter() - start, talk.made - count
                echo(f"{made} tokens in {seconds:.2f} s, {made / seconds:.1f} a second", err=True)


def _messages() -> Iterator[str]:
    """What is typed line by line, or all that is piped in."""
    if not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if text:
            yield text
        return
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            echo()
            return
        if line == "/exit":
            return
        if line:
            yield line

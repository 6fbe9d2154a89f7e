"""The tokens of a request as an asynchronous program hears them, and as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence

from .engine import Engine, Request

Heard = asyncio.Queue[int | Exception | None]


def submitted(engine: Engine, prompt: Sequence[int], most: int) -> tuple[Request, Heard]:
    """A request to the engine, and where its tokens will be heard. Raises as `Engine.submit` does."""
    loop, heard = asyncio.get_running_loop(), Heard()

    def deliver(token: int | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever listened
            loop.call_soon_threadsafe(heard.put_nowait, token)

    request = Request(prompt, most, deliver)
    engine.submit(request)
    return request, heard


async def tokens_of(request: Request, heard: Heard) -> AsyncGenerator[int, None]:
    """The tokens as they come. Whoever stops listening cancels the request. Raises RuntimeError where it failed."""
    try:
        while (token := await heard.get()) is not None:
            if isinstance(token, Exception):
                raise RuntimeError(f"the engine has failed: {token}")
            yield token
        if request.made < request.most:
            raise RuntimeError("the engine was closed before the request was done")
    finally:
        request.cancelled = True


async def events(tokens: AsyncGenerator[int, None]) -> AsyncGenerator[str, None]:
    """Server-sent events: a token each, and [DONE], or an event `error`."""
    async with contextlib.aclosing(tokens):
        try:
            async for token in tokens:
                yield f"data: {json.dumps({'token': token})}\n\n"
        except RuntimeError as error:
            yield f"event: error\ndata: {json.dumps({'error': str(error)})}\n\n"
            return
    yield "data: [DONE]\n\n"

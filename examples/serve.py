"""A language model over HTTP: tokens stream as they are made, requests are batched as they come.

    python -m examples.serve build/demo/llama.aotair [--device npu] [--port 8000]
    curl -N localhost:8000/generate -d '{"prompt": [5, 17, 3], "max_tokens": 8}'

`GET /health` says whether the engine runs, `GET /metrics` is for Prometheus. Prompts are token ids: tokenizing is the
business of whoever has the tokenizer.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator

import prometheus_client as prometheus
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import aotair
from aotair.serving.engine import Engine, Request
from aotair.serving.streams import Heard, events, submitted, tokens_of
from aotair_runtime.metrics import prometheus_text

MOST_WAITING = 256
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    def __init__(self):
        self.registry = prometheus.CollectorRegistry()
        known = {"registry": self.registry}
        self.requests = prometheus.Counter("requests", "Requests by how they ended", ["result"], **known)
        self.tokens = prometheus.Counter("tokens", "Tokens generated", **known)
        self.active = prometheus.Gauge("active_requests", "Requests that have a row of the cache", **known)
        self.waiting = prometheus.Gauge("waiting_requests", "Requests that wait for one", **known)
        self.steps = prometheus.Histogram("step_seconds", "One call of the model", ["kind"], buckets=SECONDS, **known)
        self.first = prometheus.Histogram("first_token_seconds", "From request to token", buckets=SECONDS, **known)

    def step(self, kind: str, requests: int, seconds: float) -> None:
        self.steps.labels(kind).observe(seconds)
        self.tokens.inc(requests)


def make_app(model: aotair.Model) -> Starlette:
    """The application; it closes the engine, and not the model, when it shuts down."""
    metrics = Metrics()
    engine = Engine(model, metrics.step)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    async def generate(http: HTTPRequest) -> Response:
        try:
            wanted = json.loads(await http.body())
            if engine.waiting >= MOST_WAITING:
                return _refused(metrics, 503, "too many requests wait")
            request, tokens = submitted(engine, wanted["prompt"], wanted.get("max_tokens", 16))
            stream = wanted.get("stream", True)
        except RuntimeError as error:
            return _refused(metrics, 503, str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _refused(metrics, 400, f"{type(error).__name__}: {error}")
        answers = _answers(request, tokens, metrics)
        if stream:
            return StreamingResponse(events(answers), media_type="text/event-stream")
        try:
            return JSONResponse({"tokens": [token async for token in answers]})
        except RuntimeError as error:
            return JSONResponse({"error": str(error)}, 500)

    async def health(_: HTTPRequest) -> Response:
        state = {"model": model.program.name, "device": str(model.device), "slots": engine.limits.slots}
        if engine.failure is not None:
            return JSONResponse({"status": "failed", "error": str(engine.failure), **state}, 503)
        return JSONResponse({"status": "ok", "active": engine.active, "waiting": engine.waiting, **state})

    async def show_metrics(_: HTTPRequest) -> Response:
        metrics.active.set(engine.active)
        metrics.waiting.set(engine.waiting)
        counted = prometheus.generate_latest(metrics.registry) + prometheus_text([model]).encode()
        return Response(counted, media_type=prometheus.CONTENT_TYPE_LATEST)

    routes = [
        Route("/generate", generate, methods=["POST"]),
        Route("/health", health),
        Route("/metrics", show_metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def _refused(metrics: Metrics, status: int, why: str) -> Response:
    metrics.requests.labels("refused").inc()
    return JSONResponse({"error": why}, status)


async def _answers(request: Request, heard: Heard, metrics: Metrics) -> AsyncGenerator[int, None]:
    """The tokens as they come, counted. Raises RuntimeError where the request failed."""
    result, first = "cancelled", True
    try:
        async with contextlib.aclosing(tokens_of(request, heard)) as tokens:
            async for token in tokens:
                if first:
                    metrics.first.observe(time.perf_counter() - request.arrived)
                    first = False
                yield token
        result = "done"
    except RuntimeError:
        result = "failed"
        raise
    finally:
        metrics.requests.labels(result).inc()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact")
    parser.add_argument("--device")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with aotair.load(given.artifact, device=given.device) as model:
        uvicorn.run(make_app(model), host=given.host, port=given.port)


if __name__ == "__main__":
    main()

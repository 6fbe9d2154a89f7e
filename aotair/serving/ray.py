"""A deployment of Ray Serve that answers with an artifact: `serve run` with `import_path: aotair.serving.ray:app`.

    applications:
      - name: encoder
        import_path: aotair.serving.ray:app
        args: {artifact: /models/encoder.aotair}
        deployments:
          - {name: Artifact, num_replicas: 2}

A replica is one process, or as many as the artifact has ranks, in a placement group. It speaks the Open Inference
Protocol (`/v2/…`, tensors as JSON), and gives the tokens of artifacts with `prefill` and `decode` at `/generate`.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import fastapi
import torch
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from aotair_runtime.artifact.asked import asked_for
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import AotairError, ArgumentError, CallError, ClosedError, RankError
from aotair_runtime.format.mesh import ranks_of, sizes_of
from aotair_runtime.format.schema import Program

from .engine import Engine, generates
from .ranks import Followers, Load, actor_options, meeting_place, refuse_undriven
from .streams import events, submitted, tokens_of
from .tensors import metadata, most_bytes, read_inputs, refuse_unserved, written

_MOST_TOKENS = 16  # of an answer whose request does not say
_KINDS = {"cuda": "GPU", "npu": "NPU"}  # what Ray calls a device of a kind
_AT_ONCE = 64
_LAST_WORDS = 0.2  # seconds
_log = logging.getLogger("ray.serve")


class Options(BaseModel):
    """`args` of an application. `artifact`: a directory that is there on every node. `device`, `load`: as
    `aotair_runtime.load` takes them. `resources`: what Ray reserves for each rank; by default a CPU, and a GPU or NPU
    where the artifact is for one. `strategy`: of the placement group of several ranks. `rank_timeout`: for how many
    seconds ranks wait for each other. `generate: false`: tensors alone, although the artifact could make tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact: str
    device: str | None = None
    load: Mapping[str, Any] = Field(default_factory=dict)
    resources: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    strategy: str = "PACK"
    rank_timeout: Annotated[float, Field(gt=0)] = 10.0
    generate: bool = True


def app(options: Options) -> serve.Application:
    """The application that Ray Serve runs. Raises a subclass of AotairError where the artifact cannot be served."""
    program = _program(options)
    for entry in program.entry_points:
        refuse_unserved(entry)
    refuse_undriven(program)
    if reserved := {"enable_output_clone", "rank_timeout", "group", "device"} & options.load.keys():
        raise ArgumentError("load: what the deployment itself says", got=", ".join(sorted(reserved)))
    resources = dict(options.resources) or _resources(program, options.device)
    placed: dict[str, Any] = {}
    if (ranks := ranks_of(program.mesh)) > 1:
        placed = {"placement_group_bundles": [resources] * ranks, "placement_group_strategy": options.strategy}
    deployment = Artifact.options(  # type: ignore[attr-defined]  # `serve.deployment` adds it
        ray_actor_options=actor_options(resources), **placed
    )
    found: serve.Application = deployment.bind(options, resources)
    return found


def _program(options: Options) -> Program:
    """The program that is served; of an artifact for several meshes that of `load: {mesh: …}`, by default of one
    rank."""
    return read_program(Path(options.artifact), asked_for(options.load.get("mesh")))


def _resources(program: Program, device: str | None) -> dict[str, float]:
    kind = (device or program.requirements.device).partition(":")[0]
    return {"CPU": 1.0, **({_KINDS[kind]: 1.0} if kind in _KINDS else {})}


# `ingress` copies the routes where it stands, with what they call: all that is above the class.
api = fastapi.FastAPI(title="aotair")


class _Refused(Exception):
    """A request that is answered with an error: its status, and why."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


@api.exception_handler(_Refused)
async def _say_why(_: HTTPRequest, error: _Refused) -> Response:
    return JSONResponse({"error": error.why}, error.status)


async def _asked(http: HTTPRequest, most: int) -> dict[str, Any]:
    """The JSON object of a request, of `most` bytes at most."""
    body = bytearray()
    async for part in http.stream():
        body += part
        if len(body) > most:
            raise _Refused(413, f"a request of more than {most} bytes, which is more than the largest call takes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"this is no JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise _Refused(400, "this is no JSON object")
    return found


@serve.deployment(
    max_ongoing_requests=_AT_ONCE,
    health_check_period_s=1,
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.5,
)
@serve.ingress(api)
class Artifact:
    """One replica. Over a handle: `handle.call.remote({"input": tensor})`, and
    `handle.options(stream=True).generate.remote([5, 17, 3], 8)`."""

    def __init__(self, options: Options, resources: Mapping[str, float]):
        self._followers: Followers | None = None
        self._driver: Any = None
        mesh = _program(options).mesh
        ranks = ranks_of(mesh)
        given = {**options.load, **({} if options.device is None else {"device": options.device})}
        given["mesh"] = sizes_of(mesh)
        address = meeting_place() if ranks > 1 else ""
        load = Load(options.artifact, given, address, ranks, options.rank_timeout)
        if ranks > 1:
            self._followers = Followers(load, resources)
        self._model = load.joined(0)
        if ranks > 1:
            self._driver = self._model.driver()
        self._entries = {entry.name: entry for entry in self._model.program.entry_points}
        names = [*self._entries]  # a request that names none is for the only one, or `forward`
        self._usual = names[0] if len(names) == 1 else "forward" if "forward" in names else ""
        self._most = most_bytes(self._model.program)
        self._turn = asyncio.Semaphore(1)  # one call at a time: those that wait hold no thread
        self._lost = ""
        self._engine: Engine | None = None
        if options.generate and generates(self._model.program):
            calls = None if self._driver is None else {name: getattr(self._driver, name) for name in self._entries}
            self._engine = Engine(self._model, calls=calls)

    async def check_health(self) -> None:
        """Ray Serve asks. Raises RuntimeError, which the controller can read without importing what is served."""
        if why := self._why_lost():
            self._end(why)
            raise RuntimeError(why)

    def _why_lost(self) -> str:
        """Why this replica answers nothing any more; empty where it does."""
        if self._lost:
            return self._lost
        if self._engine is not None and self._engine.failure is not None:
            return str(self._engine.failure)
        if self._followers is not None:
            return self._followers.lost()
        return ""

    def _end(self, why: str) -> None:
        """Let this process end once those that wait have their errors. What fails at once is always free, and would be
        sent every request; a process that has ended is replaced at once."""
        if not self._lost:
            self._lost = why
            _log.error("this replica ends: %s", why)
            asyncio.get_running_loop().call_later(_LAST_WORDS, os._exit, 1)

    def __del__(self) -> None:
        for one in (getattr(self, "_engine", None), getattr(self, "_driver", None), getattr(self, "_model", None)):
            with contextlib.suppress(AotairError):
                if one is not None:
                    one.close()

    # ---- over a handle --------------------------------------------------------------------------------------------

    async def call(self, inputs: Mapping[str, torch.Tensor], entry_point: str = "") -> dict[str, torch.Tensor]:
        """One call with inputs by name, on the host; the outputs by theirs. Raises a subclass of AotairError."""
        name = self._entry(entry_point)
        async with self._turn:
            try:
                return await asyncio.to_thread(self._called, name, inputs)
            except (RankError, ClosedError) as error:
                self._end(str(error))
                raise

    async def generate(self, prompt: Sequence[int], max_tokens: int = _MOST_TOKENS) -> AsyncGenerator[int, None]:
        """The likeliest tokens after a prompt, as they come; requests share the steps of decoding."""
        async with contextlib.aclosing(self._tokens(prompt, max_tokens)) as tokens:
            async for token in tokens:
                yield token

    # ---- over HTTP ------------------------------------------------------------------------------------------------

    @api.get("/v2/health/live")
    @api.get("/v2/health/ready")
    async def ready(self) -> Response:
        if why := self._why_lost():
            raise _Refused(503, why)
        return JSONResponse({"ready": True, "model": self._model.program.name})

    @api.get("/v2/models/{model}")
    async def describe(self, model: str) -> Response:
        self._refuse_other(model)
        entries = {name: metadata(entry) for name, entry in self._entries.items()}
        one = entries.get(self._usual, {})
        return JSONResponse({"name": model, "platform": "aotair", **one, "entry_points": entries})

    @api.post("/v2/models/{model}/infer")
    async def infer(self, model: str, http: HTTPRequest) -> Response:
        self._refuse_other(model)
        asked = await _asked(http, self._most)
        parameters, given = asked.get("parameters", {}), asked.get("inputs")
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise _Refused(400, "inputs is no list of tensors")
        try:
            name = self._entry(parameters.get("entry_point", "") if isinstance(parameters, dict) else parameters)
            outputs = await self.call(read_inputs(self._entries[name], given), name)
        except (ArgumentError, CallError) as error:
            raise _Refused(400, str(error)) from error
        except AotairError as error:
            raise _Refused(503, str(error)) from error
        found = {"model_name": model, "outputs": written(outputs), **({"id": asked["id"]} if "id" in asked else {})}
        return Response(json.dumps(found), media_type="application/json")

    @api.post("/generate")
    async def stream(self, http: HTTPRequest) -> Response:
        asked = await _asked(http, self._most)
        prompt, most, streamed = asked.get("prompt"), asked.get("max_tokens", _MOST_TOKENS), asked.get("stream", True)
        try:
            tokens = self._tokens(prompt, most)
        except ArgumentError as error:
            raise _Refused(400, str(error)) from error
        except RuntimeError as error:
            raise _Refused(503, str(error)) from error
        if streamed:
            return StreamingResponse(events(tokens), media_type="text/event-stream")
        try:
            return JSONResponse({"tokens": [token async for token in tokens]})
        except RuntimeError as error:
            raise _Refused(503, str(error)) from error

    # ---- the calls ------------------------------------------------------------------------------------------------

    def _called(self, name: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hosts = {one.name for one in self._entries[name].inputs if one.host}
        placed: dict[str, Any] = {
            key: one.tolist() if key in hosts else one.to(self._model.device) for key, one in inputs.items()
        }
        if self._driver is not None:
            outputs = self._driver.named_outputs(name, placed)
        else:
            outputs = self._model.entry_points[name].named_outputs(placed)
        return {key: one.cpu() for key, one in outputs.items()}

    def _tokens(self, prompt: Any, most: Any) -> AsyncGenerator[int, None]:
        if self._engine is None:
            raise ArgumentError("this artifact makes no tokens: it has no prefill and decode over slots")
        try:
            return tokens_of(*submitted(self._engine, prompt, most))
        except ValueError as error:
            raise ArgumentError(str(error)) from error
        except RuntimeError as error:
            self._end(str(error))
            raise

    def _entry(self, name: object) -> str:
        """The entry point of that name, or the usual one where none is said."""
        found = name if name != "" else self._usual
        if not isinstance(found, str) or found not in self._entries:
            raise ArgumentError("no such entry point", expected=", ".join(self._entries), got=str(name)[:80])
        return found

    def _refuse_other(self, model: str) -> None:
        if model != self._model.program.name:
            raise _Refused(404, f"there is no model {model[:80]!r} here, but {self._model.program.name!r}")

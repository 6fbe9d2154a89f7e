"""The example server with a real client: 32 requests at once, each gets the tokens it would get alone."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import torch
import uvicorn
from cases import ROOT

import aotair
from aotair.recipe.read import read_recipe
from aotair.serving.engine import Engine, Request

sys.path.insert(0, str(ROOT))
from examples import serve
from examples.generate import generate, some_prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[aotair.Model]:
    recipe = read_recipe(ROOT / "recipes" / "llama.yaml", ("model.kwargs.layers=1",))
    with aotair.load(aotair.build(recipe, tmp_path_factory.mktemp("serve") / "llama.aotair")) as model:
        yield model


@pytest.fixture(scope="module")
def address(model: aotair.Model) -> Iterator[str]:
    """A server on a port of its own."""
    server = uvicorn.Server(uvicorn.Config(serve.make_app(model), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


async def ask(client: httpx.AsyncClient, prompt: list[int], most: int) -> list[int]:
    """The tokens of a stream, in the order in which they came."""
    tokens = []
    async with client.stream("POST", "/generate", json={"prompt": prompt, "max_tokens": most}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    tokens += [json.loads(line.removeprefix("data: "))["token"] for line in lines[:-1]]
    return tokens


def test_32_requests_at_once(model, address):
    lengths = [1 + (7 * i) % 40 for i in range(32)]
    counts = [3 + (5 * i) % 20 for i in range(32)]
    prompts = some_prompts(512, lengths)

    async def all_at_once() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            return await asyncio.gather(*(ask(client, *pair) for pair in zip(prompts, counts)))

    got = asyncio.run(all_at_once())
    assert [len(tokens) for tokens in got] == counts
    with aotair.load(model.artifact.path) as alone:
        for prompt, count, tokens in zip(prompts, counts, got):
            assert tokens == generate(alone, [prompt], count)[0]


def test_health_and_metrics(address):
    health = httpx.get(f"{address}/health").json()
    assert health["status"] == "ok" and health["slots"] == 8 and health["model"] == "llama"
    assert httpx.post(f"{address}/generate", json={"prompt": [1], "max_tokens": 3, "stream": False}).status_code == 200
    text = httpx.get(f"{address}/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if line[0] != "#"]
    values = {name: float(value) for name, _, value in lines}
    assert values['requests_total{result="done"}'] >= 1 and values["tokens_total"] >= 3
    assert values['step_seconds_count{kind="decode"}'] >= 2 and values["first_token_seconds_count"] >= 1
    assert values["active_requests"] == values["waiting_requests"] == 0
    decoded = [value for name, value in values.items() if name.startswith("aotair_calls_total") and "decode" in name]
    assert sum(decoded) >= 2 and values['aotair_reloads_total{model="llama"}'] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"3", b"{}", b'{"prompt": "text"}', b'{"prompt": []}', b'{"prompt": [512]}',
        b'{"prompt": [-1]}', b'{"prompt": [true]}', b'{"prompt": [1.5]}', b'{"prompt": [1], "max_tokens": 0}',
        b'{"prompt": [1], "max_tokens": 128}', b'{"prompt": [1], "max_tokens": null}',
        b'{"prompt": ' + json.dumps([1] * 65).encode() + b"}",
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(address, body: bytes):
    answer = httpx.post(f"{address}/generate", content=body)
    assert answer.status_code == 400 and answer.json()["error"]


def test_who_stops_listening_gives_his_row_back(address):
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            for _ in range(12):  # more than there are rows
                async with client.stream("POST", "/generate", json={"prompt": [1, 2], "max_tokens": 126}) as answer:
                    async for _line in answer.aiter_lines():
                        break

    asyncio.run(leave())
    deadline = time.monotonic() + 30
    while httpx.get(f"{address}/health").json()["active"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(httpx.post(f"{address}/generate", json={"prompt": [4], "stream": False}).json()["tokens"]) == 16


def test_a_request_joins_while_others_are_served(model):
    """The second comes after the first has had its first token, and is served before that is done."""
    order: list[str] = []
    engine, done = Engine(model), threading.Event()
    second = Request([9], 2, lambda token: order.append("second"))

    def first(token: object) -> None:
        order.append("first")
        if len(order) == 1:
            engine.submit(second)
        if token is None:
            done.set()

    engine.submit(Request([3, 4], 100, first))
    assert done.wait(60)
    engine.close()
    assert order.count("second") == 3 and order[-1] == "first"


def test_an_engine_that_fails_tells_everybody(model, monkeypatch):
    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the device is gone")

    engine, heard = Engine(model), []
    monkeypatch.setitem(model.entry_points, "decode", broken)
    ended = threading.Event()
    engine.submit(Request([1], 5, lambda token: (heard.append(token), isinstance(token, Exception) and ended.set())))
    assert ended.wait(60)
    assert isinstance(heard[0], int) and "the device is gone" in str(heard[1])
    with pytest.raises(RuntimeError, match="has failed"):
        engine.submit(Request([1], 5, print))

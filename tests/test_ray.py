"""Deployments of Ray Serve on a cluster of several nodes on this machine: what they answer over HTTP and over handles,
what they refuse, and that a replica whose rank is lost is replaced without a lost or wrong answer."""

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import routed
import torch
from cases import ROOT
from marks import long
from ray import serve

import aotair
from aotair.recipe.read import read_recipe
from aotair.serving.ray import Options, app
from aotair_runtime.errors import ArgumentError, RankError
from benchmarks.replicas import Deployed, deployed, measure, recipe
from examples.generate import generate, some_prompts

LLAMAS = {"llama": ("model.kwargs.layers=1",), "llama_of_ranks": ("model.kwargs.layers=1", "mesh.tp=2")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    aotair.build(recipe(2), folder / "block.aotair")
    aotair.build(recipe(2) | {"mesh": [{}, {"tp": 2}]}, folder / "blocks.aotair")
    for name, changes in LLAMAS.items():
        aotair.build(read_recipe(ROOT / "recipes" / "llama.yaml", changes), folder / f"{name}.aotair")
    return folder


@pytest.fixture(scope="module")
def block(folder: Path, common_folder: Path) -> Iterator[Deployed]:
    """Two replicas of two ranks each, on three nodes, of an artifact for one rank too; one cluster at a time, where
    several workers run these tests."""
    with (common_folder / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with deployed(folder / "blocks.aotair", 2, 2, {"mesh": {"tp": 2}}) as found:
            yield found


def tensor(data: object, shape: tuple[int, ...] = (2, 3), datatype: str = "INT64", name: str = "ids") -> dict:
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": data}


def test_several_ranks_answer_in_the_open_inference_protocol(block: Deployed, folder: Path):
    ids = [[3, 1, 2], [9, 0, 23]]
    with httpx.Client(base_url=block.address, timeout=60) as client:
        assert client.get("/v2/health/ready").json() == {"ready": True, "model": "block"}
        about = client.get("/v2/models/block").json()
        assert about["inputs"] == [{"name": "ids", "shape": [-1, -1], "datatype": "INT64"}]
        assert about["outputs"] == [{"name": "output", "shape": [-1, -1, 24], "datatype": "FP32"}]
        answers = [
            client.post("/v2/models/block/infer", json={"id": "7", "inputs": [tensor(data)]}).json()
            for data in (ids, [token for row in ids for token in row])
        ]
        assert answers[0] == answers[1] and answers[0]["id"] == "7" and answers[0]["model_name"] == "block"
        wrong = {
            "numbers that this datatype does not have": [tensor([1.5] * 6)],
            "values that the model does not take": [tensor([99] * 6)],
            "data is no tensor of this shape": [tensor([1] * 5)],
            "another datatype": [tensor([1] * 6, datatype="INT32")],
            "other inputs than the entry point takes": [tensor([1] * 6, name="x")],
            "no bucket holds batch=9": [tensor([1] * 27, (9, 3))],
            "inputs is no list of tensors": 3,
        }
        for words, inputs in wrong.items():
            answer = client.post("/v2/models/block/infer", json={"inputs": inputs})
            assert answer.status_code == 400 and words in answer.json()["error"], answer.text
        assert client.post("/v2/models/block/infer", content="{").status_code == 400
        assert client.post("/v2/models/block/infer", content="[" * 90_000).status_code == 413
        assert client.post("/v2/models/other/infer", json={}).status_code == 404
        assert "makes no tokens" in client.post("/generate", json={"prompt": [1]}).json()["error"]
        (output,) = answers[0]["outputs"]
    aotair.build(recipe(1), folder / "whole.aotair")
    with aotair.load(folder / "whole.aotair") as whole:
        got = torch.tensor(output["data"]).view(output["shape"])
        torch.testing.assert_close(got, whole(torch.tensor(ids)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kill", [long("follower"), "replica"])
def test_nothing_is_lost_or_wrong_where_a_process_is_killed(block: Deployed, kill: str):
    found = measure(block, kill, clients=4, seconds=10)
    assert (found.lost, found.wrong) == (0, 0) and found.answered > 20 and found.back < 240


@pytest.mark.parametrize("name", LLAMAS)
def test_tokens_come_as_they_are_made(block: Deployed, folder: Path, name: str):
    prompts = some_prompts(512, (3, 17, 5))
    with aotair.load(folder / "llama.aotair") as model:
        want = [generate(model, [prompt], 8)[0] for prompt in prompts]
    application = app(Options(artifact=str(folder / f"{name}.aotair")))
    handle = serve.run(application, name=name, route_prefix=f"/{name}")
    streams = [handle.options(stream=True).generate.remote(prompt, 8) for prompt in prompts]
    assert [list(stream) for stream in streams] == want
    with httpx.Client(base_url=f"{block.address}/{name}", timeout=60) as client:
        lines = client.post("/generate", json={"prompt": prompts[0], "max_tokens": 8}).text.split("\n\n")[:-1]
        assert lines == [*(f'data: {{"token": {token}}}' for token in want[0]), "data: [DONE]"]
        whole = client.post("/generate", json={"prompt": prompts[0], "max_tokens": 8, "stream": False})
        assert whole.json() == {"tokens": want[0]}
        for wrong in ({"prompt": [512]}, {"prompt": []}, {"prompt": "hello"}, {"prompt": [1], "max_tokens": 1000}, {}):
            assert client.post("/generate", json=wrong).status_code == 400
    serve.delete(name)


def test_what_cannot_be_served_is_refused(built: Callable[[str], Path], folder: Path, tmp_path: Path):
    with pytest.raises(ArgumentError, match="write into the input cache"):
        app(Options(artifact=str(built("cache"))))
    with pytest.raises(ArgumentError, match="what the deployment itself says"):
        app(Options(artifact=str(folder / "block.aotair"), load={"rank_timeout": 3}))
    with pytest.raises(RankError, match="no program for the mesh"):
        app(Options(artifact=str(folder / "blocks.aotair"), load={"mesh": {"tp": 4}}))
    path = aotair.build(recipe(2) | {"mesh": {"dp": 2, "tp": 2}}, tmp_path / "replicas.aotair")
    with pytest.raises(ArgumentError, match="are replicas") as caught:
        app(Options(artifact=str(path)))
    assert caught.value.got == "dp=2" and "num_replicas" in caught.value.fix
    path = aotair.build(routed.recipe(dp=2), tmp_path / "routed.aotair")
    with pytest.raises(ArgumentError, match="inputs of their own") as caught:
        app(Options(artifact=str(path)))
    assert caught.value.got == "dp=2" and "torchrun" in caught.value.fix

"""Model Explorer's own extension manager, asked for the graphs of artifacts and the numbers over them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from model_explorer.extension_manager import ExtensionManager

import aotair
from aotair.cli import main
from aotair.diff.flow import constant_names, flow_of
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.format.debug_data import DebugData


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(16, 4))
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.down(self.up(x)).sigmoid() + self.calls


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = {"x": {"shape": ["batch", 8], "dtype": "float32", "pad": 0}}
    folder = tmp_path_factory.mktemp("explore")
    return aotair.build(
        None, folder / "x.aotair", model=Small(), name="small", inputs=inputs, buckets={"batch": [1, 4]}
    )


@pytest.fixture(scope="module")
def explorer() -> ExtensionManager:
    manager = ExtensionManager(["aotair.explore"])
    manager.custom_extension_modules = ["aotair.explore.main"]  # the manager is one for all of the process
    manager.load_extensions()
    return manager


def converted(explorer: ExtensionManager, artifact: Path) -> list[dict[str, Any]]:
    """Its collections of graphs, as the page gets them."""
    command = {"cmdId": "convert", "modelPath": str(artifact / "program.msgpack"), "settings": {}}
    return explorer.run_cmd({**command, "extensionId": "aotair", "deleteAfterConversion": False})["graphCollections"]


def numbers(explorer: ExtensionManager, artifact: Path, name: str, graph: str = "forward: batch=4") -> dict[str, Any]:
    command = {"cmdId": "run", "modelPath": str(artifact / "program.msgpack"), "graphId": graph, "configValues": {}}
    return explorer.run_cmd({**command, "extensionId": f"aotair_{name}"})


def test_a_graph_for_each_bucket_by_module(explorer: ExtensionManager, artifact: Path):
    (collection,) = converted(explorer, artifact)
    assert collection["label"] == "forward"
    assert [graph["id"] for graph in collection["graphs"]] == ["forward: batch=1", "forward: batch=4"]
    nodes = {node["id"]: node for node in collection["graphs"][1]["nodes"]}
    spaces = {node["label"]: node["namespace"] for node in nodes.values()}
    assert spaces["x"] == "inputs" and spaces["calls"] == "states" and spaces["outputs"] == ""
    assert {"up", "down/0", "down/1"} <= {node["namespace"] for node in nodes.values()}
    (product,) = (node for node in nodes.values() if node["namespace"] == "up")
    said = {item["key"]: item["value"] for item in product["attrs"]}
    assert said["weights"] in ("up.bias, up.weight", "up.weight, up.bias") and "test_explore.py" in said["line"]
    assert product["incomingEdges"][0]["sourceNodeId"] == "input x"
    (shape,) = product["outputsMetadata"]
    assert shape["attrs"] == [{"key": "tensor_shape", "value": "float32[4, 16]"}]


def test_the_edges_are_the_flow(explorer: ExtensionManager, artifact: Path):
    program = read_program(artifact)
    (entry,) = program.entry_points
    flow = flow_of(program, entry, entry.buckets[1], constant_names(program), DebugData())
    origins = [source.origin for step in flow.steps for read in step.reads for source in read]
    calls = [origin for origin in origins if isinstance(origin, int)]
    given = [origin for origin in origins if not isinstance(origin, int) and origin[0] in ("input", "state")]
    nodes = converted(explorer, artifact)[0]["graphs"][1]["nodes"]
    edges = [edge for node in nodes for edge in node["incomingEdges"]]
    known = {node["id"] for node in nodes}
    assert all(edge["sourceNodeId"] in known for edge in edges)
    assert len(edges) == len(calls) + len(given) and calls and given


@pytest.mark.parametrize("name", ["bytes", "operations", "time"])
def test_numbers_for_every_call(name: str, explorer: ExtensionManager, artifact: Path):
    nodes = converted(explorer, artifact)[0]["graphs"][1]["nodes"]
    found = numbers(explorer, artifact, name)
    assert not found["error"] and found["result"]["name"] == name
    calls = {node["id"] for node in nodes if node["id"].isdigit()}
    values = {place: result["value"] for place, result in found["result"]["results"].items()}
    assert set(values) == calls and all(value >= 0 for value in values.values()) and sum(values.values()) > 0
    if name == "operations":
        (product,) = (node["id"] for node in nodes if node["namespace"] == "up")
        assert values[product] == 2 * 4 * 8 * 16


def test_what_made_each_call_is_a_word(explorer: ExtensionManager, artifact: Path):
    results = numbers(explorer, artifact, "passes")["result"]["results"]
    assert results and all(isinstance(result["value"], str) and result["value"] for result in results.values())


def test_a_graph_that_is_not_there_is_an_error_with_a_text(explorer: ExtensionManager, artifact: Path):
    found = numbers(explorer, artifact, "bytes", "forward: batch=9")
    assert found["result"] is None and "the artifact has no such graph" in found["error"]


def test_a_file_that_is_no_program_is_refused(explorer: ExtensionManager, tmp_path: Path):
    (tmp_path / "program.msgpack").write_bytes(b"nothing")
    with pytest.raises(aotair.AotairError):
        converted(explorer, tmp_path)


NEAR = """
import torch


class Near(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def forward(self, x):
        y = x.tanh()
        mean = y.pow(2).mean(-1, keepdim=True)
        return self.weight * (y * torch.rsqrt(mean + 1e-5)) + mean
"""


NEAR_RECIPE = """
name: near
model: {factory: "near.py:Near"}
target: {device: npu}
inputs: {x: {shape: [4, 64], dtype: float32}}
"""


def test_what_rules_left_alone_lies_at_the_calls_of_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(NEAR)
    inputs = "inputs: {x: {shape: [4, 64], dtype: float32}}"
    (tmp_path / "near.yaml").write_text(
        f'name: near\nmodel: {{factory: "near.py:Near"}}\ntarget: {{device: npu}}\n{inputs}\n'
    )
    path = aotair.build("near.yaml", "near.aotair")
    done = CliRunner().invoke(main, ["explain", "near.yaml", "--explore", str(path), "misses.json"])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "misses.json").read_text())
    assert list(data) == ["forward: static"]
    found = data["forward: static"]["results"]
    lines = {place: DebugData.of(read_debug_data(open_artifact(path)), int(place)).line for place in found}
    assert found and all("near.py:1" in line for line in lines.values())
    assert all(": " in result["value"] for result in found.values())
    assert not any("tanh" in line for line in lines.values())

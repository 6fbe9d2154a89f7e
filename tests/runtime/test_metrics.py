"""Metrics: what models count, in Prometheus' text format and as OpenTelemetry's instruments."""

import gc
import json
import re
import shutil
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path

import prometheus_client.parser
import pytest
import torch
from cases import ROOT

import aotair
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format import codec
from aotair_runtime.metrics import instrument, metrics, prometheus_text

IDS = torch.ones(1, 3, dtype=torch.int64)


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By Prometheus' own parser: the points of each metric."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in prometheus_client.parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_prometheus_reads_what_a_model_has_counted(built):
    with aotair.load(built("encoder")) as model:
        for _ in range(3):
            model(IDS, IDS)
        found, stats, memory = parsed(prometheus_text([model])), model.stats(), model.memory()
        model.load_weights(built("encoder"))
        again = parsed(prometheus_text([model]))
    assert sum(found["aotair_calls_total"].values()) == 3 == stats.calls
    assert sum(found["aotair_captures_total"].values()) == stats.captures
    (served,) = [one for one in stats.buckets if one.calls]
    labels = (("bucket", served.bucket), ("entry", "forward"), ("model", "encoder"))
    assert found["aotair_calls_total"][labels] == 3
    assert found["aotair_padding_ratio"][labels] == served.padding > 0
    (weights,) = [one for one in memory.categories if one.name == "weights"]
    of_weights = (("category", "weights"), ("model", "encoder"), ("what", "promised"))
    assert found["aotair_memory_bytes"][of_weights] == weights.promised > 0
    assert found["aotair_reloads_total"] == {(("model", "encoder"),): 0}
    assert again["aotair_reloads_total"] == {(("model", "encoder"),): 1}


def test_recaptures_say_why(node):
    with node.load("cache") as model:
        spec = model.entry_points["forward"].spec
        from aotair_runtime.artifact.open import read_golden
        from aotair_runtime.weights.golden import key

        golden = read_golden(model.artifact)
        names = [key("forward", 0, "in", item.name) for item in spec.inputs]
        kept = [[golden[name].to(model.device, copy=True) for name in names] for _ in range(2)]  # two addresses
        for given in kept:
            model(*given)
        found = parsed(prometheus_text([model]))["aotair_recaptures_total"]
        assert sum(found.values()) == sum(one.times for one in model.stats().recaptures) > 0
        assert {dict(labels)["reason"] for labels in found} == {one.reason for one in model.stats().recaptures}


def test_models_of_one_name_are_told_apart_and_a_closed_one_does_no_harm(built):
    with aotair.load(built("linear")) as one, aotair.load(built("linear")) as other:
        found = parsed(prometheus_text([one, other]))["aotair_reloads_total"]
        assert found == {(("model", "linear"),): 0, (("model", "linear 2"),): 0}
    assert parsed(prometheus_text([one]))["aotair_reloads_total"] == {(("model", "linear"),): 0}
    assert parsed(prometheus_text([])) == {}


def test_a_name_that_an_artifact_chose_breaks_no_line(built, tmp_path: Path):
    path = tmp_path / "h.aotair"
    shutil.copytree(built("linear"), path)
    program = open_artifact(path).program
    name = 'a"} 7\naotair_calls_total{model="evil"} 99\n\\' + "\x1b[2J" + "x" * 9999
    (path / "program.msgpack").write_bytes(codec.dump(replace(program, name=name)))
    with aotair.load(path) as model:
        text = prometheus_text([model])
    assert all(value == 0 for value in parsed(text)["aotair_calls_total"].values())
    assert len(text) < 20_000 and "\x1b" not in text
    assert all(len(dict(labels)["model"]) <= 200 for labels in parsed(text)["aotair_calls_total"])


@dataclass(frozen=True)
class Observation:
    value: float
    attributes: dict[str, str]


@dataclass
class Meter:
    """As much of OpenTelemetry's as is asked for."""

    made: dict[str, tuple[str, str, list]] = field(default_factory=dict)

    def create_observable_counter(self, name: str, callbacks: list, unit: str, description: str) -> None:
        self.made[name] = ("counter", unit, callbacks)

    def create_observable_gauge(self, name: str, callbacks: list, unit: str, description: str) -> None:
        self.made[name] = ("gauge", unit, callbacks)

    def points(self, name: str) -> list[Observation]:
        return [point for callback in self.made[name][2] for point in callback(None)]


@pytest.fixture
def opentelemetry(monkeypatch) -> Meter:
    meter = Meter()
    api = types.ModuleType("opentelemetry.metrics")
    api.get_meter, api.Observation = lambda name: meter, Observation
    package = types.ModuleType("opentelemetry")
    package.metrics = api
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", api)
    return meter


def test_opentelemetry_observes_what_prometheus_reads(built, opentelemetry: Meter):
    with aotair.load(built("encoder")) as model:
        instrument([model])
        model(IDS, IDS)
        for metric in metrics([model]):
            kind, unit, _ = opentelemetry.made[metric.name]
            assert (kind, unit) == (metric.kind, metric.unit)
            assert [(p.attributes, p.value) for p in opentelemetry.points(metric.name)] == list(metric.points)
        assert sum(p.value for p in opentelemetry.points("aotair.calls")) == 1


def test_opentelemetry_keeps_no_model_alive(built, opentelemetry: Meter):
    model = aotair.load(built("linear"))
    instrument([model])
    assert opentelemetry.points("aotair.reloads")
    model.close()
    del model
    gc.collect()
    assert opentelemetry.points("aotair.reloads") == []


def test_without_opentelemetry_that_is_said(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with aotair.load(built("linear")) as model, pytest.raises(AotairError, match="opentelemetry-api"):
        instrument([model])


def test_the_dashboard_asks_for_metrics_that_there_are(built):
    board = json.loads((ROOT / "examples" / "grafana.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    asked = {name for target in targets for name in re.findall(r"aotair_\w+", target["expr"])}
    labels = {name for target in targets for name in re.findall(r"{{(\w+)}}", target["legendFormat"])}
    with aotair.load(built("encoder")) as model:
        text = prometheus_text([model])
    assert asked == set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert labels <= set(re.findall(r'(\w+)="', text)) | {"reason"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])

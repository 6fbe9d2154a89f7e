"""Buckets that one symbolic graph does not serve: as few graphs as there have to be, the same numbers, and why."""

import logging
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import aotair
from aotair.builder import build_with_summary, plan
from aotair.cli import main
from aotair.errors import ProofError, UnsupportedError
from aotair.export.variants import export_buckets
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.report.progress import Progress


class Chunk(torch.nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, 0)
        return a + b


class View(torch.nn.Module):
    def forward(self, x):
        return x.view(2, -1, 4).sum(0)


class Split(torch.nn.Module):
    def forward(self, x):
        return sum(x.split(2, 0))


class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 3 else x * 3


class Skip(torch.nn.Module):
    """Down and up again, as a UNet does: only even sizes come back to what they were."""

    def forward(self, x):
        down = torch.nn.functional.max_pool2d(x, 2)
        return torch.cat([x, torch.nn.functional.interpolate(down, scale_factor=2.0)], 1)


class Counted(torch.nn.Module):
    """A state and a literal that all graphs share."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.calls.add_(1)
        return sum(x.split(2, 0)) * self.weight + self.calls + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Odd(torch.nn.Module):
    """Returns as many rows as no formula says."""

    def forward(self, x):
        return x[: {2: 1, 4: 3, 8: 2}[int(x.shape[0])]] * 2


class Shapes(torch.nn.Module):
    def forward(self, x):
        return (x, x + 1) if x.shape[0] > 3 else x


def recipe(model: str, shape: list, buckets: dict, **parts: object) -> dict:
    return {
        "name": model.lower(),
        "model": {"factory": f"{__file__}:{model}"},
        "inputs": {"x": {"shape": shape, "dtype": "float32"} | parts},
        "buckets": buckets,
    }


ROWS = ["n", 4], {"n": [2, 4, 8]}
IMAGES = ["b", 3, "h", "w"], {"b": [1, 2], "h": [16, 22], "w": [16, 20]}


@pytest.mark.parametrize(
    ("model", "sizes", "graphs", "line"),
    [
        (Chunk, ROWS, 2, "a, b = x.chunk(2, 0)"),
        (View, ROWS, 2, "return x.view(2, -1, 4).sum(0)"),
        (Split, ROWS, 3, "return sum(x.split(2, 0))"),
        (Branch, ROWS, 2, "return x * 2 if x.shape[0] > 3 else x * 3"),
        (Skip, IMAGES, 2, ""),
        (Counted, ROWS, 3, "return sum(x.split(2, 0)) * self.weight"),
    ],
)
def test_buckets_get_the_graphs_they_need(model, sizes, graphs, line, tmp_path):
    summary = build_with_summary(recipe(model.__name__, *sizes), tmp_path / "a.aotair", Progress(quiet=True))
    assert len(summary.graphs) == graphs - 1
    number = next((n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if line and line in text), 0)
    assert not line or f"(at test_variants.py:{number}, in forward)" in summary.graphs[0]
    loaded, original = aotair.load(summary.artifact, enable_output_clone=True), model()
    for bucket in loaded.program.entry_points[0].buckets:
        shape = [
            dict(zip([d.name for d in loaded.program.entry_points[0].dims], bucket.sizes)).get(d, d) for d in sizes[0]
        ]
        x = torch.randn(shape)
        torch.testing.assert_close(loaded(x), original(x))


def test_what_graphs_share_is_stored_once(tmp_path):
    path = aotair.build(recipe("Counted", *ROWS), tmp_path / "a.aotair")
    program = aotair.load(path).program
    assert [state.name for state in program.state] == ["calls"]
    assert sorted(c.shape for c in program.constants) == [(1,), (4,), (4,)]


def test_padding_between_buckets_is_still_proved(tmp_path):
    with pytest.raises(ProofError, match="padding the dimension n of the input x changes the outputs"):
        aotair.build(recipe("Branch", *ROWS, pad=0), tmp_path / "a.aotair")


def test_one_graph_stays_one(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="aotair"):
        parsed = job_of(parse_recipe(recipe("Branch", ["n", 4], {"n": [4, 8]})))
        (only,) = export_buckets(load_model(parsed), parsed.entries[0])
    assert only.buckets == ((4,), (8,)) and not only.why and "graphs" not in caplog.text


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("Odd", "the size of the output 0 along the axis 0 follows no formula"),
        ("Shapes", "returns other things for some"),
    ],
)
def test_what_no_entry_point_can_be_is_refused(model, says):
    with pytest.raises(UnsupportedError, match=says):
        plan(recipe(model, *ROWS))


def test_the_command_says_why(tmp_path):
    import yaml

    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe("Split", *ROWS)))
    done = CliRunner().invoke(main, ["build", str(tmp_path / "r.yaml"), "-o", str(tmp_path / "a.aotair")])
    assert done.exit_code == 0 and "assumes n = 8 (at test_variants.py:" in done.output

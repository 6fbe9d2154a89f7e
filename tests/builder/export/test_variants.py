"""Buckets that one symbolic graph does not serve: as few graphs as there have to be, the same numbers, and why."""

import logging
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from exports import entry_of, shaped

import aotair
from aotair.builder import build_with_summary, plan
from aotair.cli import main
from aotair.errors import ProofError, SizesError, UnsupportedError
from aotair.export.variants import _guesses, export_buckets
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.report.progress import Progress
from aotair_runtime.format.sizes import evaluate


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


# ---- one interface ---------------------------------------------------------------------------------------------------


def job(model: type, shape: list = ROWS[0], buckets: dict = ROWS[1]):
    return entry_of(model(), {"x": shaped(*shape)}, buckets)


@pytest.mark.parametrize(
    ("model", "served"),
    [
        (Chunk, [((4,), (8,)), ((2,),)]),
        (Split, [((8,),), ((4,),), ((2,),)]),
        (Branch, [((4,), (8,)), ((2,),)]),
    ],
)
def test_the_largest_bucket_comes_first_and_each_is_served_once(model, served):
    found = export_buckets(model(), job(model))
    assert [one.buckets for one in found] == served
    assert found[0].why == "" and all(one.why for one in found[1:])


def test_each_graph_says_for_which_bucket_it_had_to_be():
    _, other = export_buckets(Branch(), job(Branch))
    assert other.why.startswith("n=2 needs another graph than those before: the graph of other sizes assumes ")


def test_what_is_found_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="aotair"):
        export_buckets(Branch(), job(Branch))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("aotair")]
    assert "not one graph for all buckets" in lines[0]
    assert "1 graphs, 1 buckets left: n=2 needs another" in lines[1] and lines[2].endswith("2 graphs, 0 buckets left")


def test_without_dimensions_there_is_nothing_to_choose_from():
    class Never(torch.nn.Module):
        def forward(self, x):
            return {x.shape[0]: 1}[x.shape[0]] * x

    def refuse(*_):
        raise SizesError("planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aotair.export.variants.export", refuse)
        with pytest.raises(SizesError, match="planted"):
            export_buckets(Never(), entry_of(Never(), {"x": shaped(2, 4)}))


@pytest.mark.parametrize("sizes", [ROWS, (["n", "m"], {"n": [2, 4], "m": [3, 6]})])
def test_all_graphs_have_output_sizes_that_hold_for_all(sizes):
    class Joined(torch.nn.Module):
        def forward(self, x):
            y = x * 2 if x.shape[0] > 3 else x
            return y.t(), torch.cat([y, y, y[:1]]), y.flatten(), y[: y.shape[0] // 2]

    entry = job(Joined, *sizes)
    found = export_buckets(Joined(), entry)
    assert len(found) == 2 and found[0].outputs == found[1].outputs
    for bucket in entry.bucket_sizes():
        shape = [dict(zip(entry.dims(), bucket)).get(size, size) for size in sizes[0]]
        for expected, sizes_ in zip(Joined()(torch.zeros(shape)), found[0].outputs):
            assert tuple(evaluate(expr, bucket) for expr in sizes_) == tuple(expected.shape)


class Dtypes(torch.nn.Module):
    def forward(self, x):
        return x if x.shape[0] > 3 else x.double()


class Ranks(torch.nn.Module):
    def forward(self, x):
        return x if x.shape[0] > 3 else x.flatten()


@pytest.mark.parametrize("model", [Shapes, Dtypes, Ranks])
def test_another_structure_dtype_or_rank_is_refused(model):
    with pytest.raises(UnsupportedError, match="returns other things for some sizes") as caught:
        export_buckets(model(), job(model))
    assert caught.value.expected == "what it returns at (4,)" and caught.value.got == "another structure at (2,)"


def test_a_size_without_a_formula_is_shown_at_some_buckets():
    with pytest.raises(UnsupportedError) as caught:
        export_buckets(Odd(), job(Odd))
    assert caught.value.got == "2 at (8,); 3 at (4,); 1 at (2,)"


# ---- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "formula",
    [
        lambda n, m: n,
        lambda n, m: m,
        lambda n, m: n + 3,
        lambda n, m: m - 1,
        lambda n, m: 5 * n,
        lambda n, m: n // 2,
        lambda n, m: -(-m // 3),
        lambda n, m: n * m,
        lambda n, m: n * m // 2,
        lambda n, m: 4 * n * m,
    ],
)
def test_a_formula_that_fits_all_buckets_is_among_the_guesses(formula):
    buckets = [(4, 6), (8, 6), (4, 12), (10, 30)]
    wanted = {bucket: formula(*bucket) for bucket in buckets}
    fitting = [e for e in _guesses(wanted, 2) if all(evaluate(e, b) == size for b, size in wanted.items())]
    assert fitting and all(evaluate(fitting[0], (n, m)) == formula(n, m) for n in (2, 16) for m in (6, 18))


def test_sizes_of_nothing_are_guessed_too():
    assert all(evaluate(expr, (4,)) == 0 for expr in _guesses({(4,): 0}, 1) if expr == ("+", ("dim", 0), -4))

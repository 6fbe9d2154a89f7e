"""What a newcomer's own model and first calls meet: defaults, sizes kept in dicts, lazy modules, wrong options."""

import functools
import pickle

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import aotair
from aotair.cli import main
from aotair.errors import ModelError, ProofError, RecipeError, UnsupportedError
from aotair_runtime.errors import ArgumentError, ClosedError, DeviceError, ShapeError

ROWS = {"x": {"shape": ["n", 3], "dtype": "float32"}}


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, mask=None, flag=False, *, scale=2.0):
        self.total += x
        return x * scale if mask is None and not flag else x


@pytest.fixture
def path(tmp_path):
    return aotair.build(model=Optional(), inputs={"x": torch.zeros(3)}, out=tmp_path / "a.aotair")


def test_a_loaded_model_takes_the_methods_defaults(path):
    model, x = aotair.load(path, enable_output_clone=True), torch.randn(3)
    for call in (model(x, None), model(x, None, False), model(x, mask=None), model(x, flag=False, scale=2.0)):
        assert torch.equal(call, x * 2)
    for args, kwargs in (((x, None, True), {}), ((x,), {"flag": True}), ((x,), {"scale": 3.0})):
        with pytest.raises(ArgumentError, match="which the model was built with as"):
            model(*args, **kwargs)
    with pytest.raises(ArgumentError, match=r"5 positional arguments"):
        model(x, None, False, 2.0, None)


class BySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        n = x.shape[0]
        if n not in self.tables:
            self.tables[n] = torch.arange(float(n))[:, None]
        return x * self.tables[n] + _ones(n)


@functools.lru_cache
def _ones(n):
    return torch.ones(n, 1)


def test_things_kept_by_size_get_graphs_of_their_own(tmp_path):
    model = aotair.load(aotair.build(model=BySize(), inputs=ROWS, buckets={"n": [2, 4]}, out=tmp_path / "a.aotair"))
    for rows in (2, 4):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model(x), BySize()(x))


class Viewed(nn.Module):
    def forward(self, x):
        return x.view(2, -1, 4)


def test_sizes_that_are_products_of_two_dimensions(tmp_path):
    inputs = {"x": {"shape": ["b", "t", 4], "dtype": "float32"}}
    buckets = [{"b": 2, "t": 3}, {"b": 4, "t": 3}, {"b": 1, "t": 6}]
    model = aotair.load(aotair.build(model=Viewed(), inputs=inputs, buckets=buckets, out=tmp_path / "a.aotair"))
    for bucket in buckets:
        x = torch.randn(bucket["b"], bucket["t"], 4)
        assert torch.equal(model(x), x.view(2, -1, 4))


def test_a_lazy_module_is_said(tmp_path):
    with pytest.raises(ModelError, match="weight has no shape yet"):
        aotair.build(model=nn.LazyLinear(3), inputs={"input": torch.zeros(2, 3)}, out=tmp_path / "a.aotair")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x, mask):
        return self.layers(x, src_key_padding_mask=~mask)


def test_an_encoder_with_a_fast_path_says_how_it_builds(tmp_path):
    inputs = {
        "x": {"shape": [2, 4, 8], "dtype": "float32"},
        "mask": {"shape": [2, 4], "dtype": "bool", "mask": "right"},
    }
    with pytest.raises(ProofError, match="enable_nested_tensor=False"):
        aotair.build(model=Encoder(), inputs=inputs, out=tmp_path / "a.aotair")


def test_a_mask_without_pad_is_named_where_nothing_is_padded(tmp_path):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return (x * mask).sum(1)

    inputs = {
        "x": {"shape": [2, "s"], "dtype": "float32", "pad": 0},
        "mask": {"shape": [2, "s"], "dtype": "float32", "mask": "right"},
    }
    model = aotair.load(aotair.build(model=Masked(), inputs=inputs, buckets={"s": [8]}, out=tmp_path / "a.aotair"))
    with pytest.raises(ShapeError, match="nothing is padded along s: give each input that has it a pad"):
        model(torch.zeros(2, 5), torch.ones(2, 5))


def test_amounts_and_devices_as_people_write_them(path):
    for options in ({"memory_budget": "1GiB"}, {"memory_budget": "90%"}, {"device": torch.device("cpu")}):
        with aotair.load(path, **options) as model:
            model(torch.zeros(3))
    assert aotair.graph_pool("cpu", "1MiB").arena.nbytes == 1 << 20


@pytest.mark.parametrize(
    "options",
    [
        {"memory_budget": "much"},
        {"memory_budget": 0},
        {"memory_budget": True},
        {"limits": 3},
        {"capture": 3},
        {"clone_input": "x"},
        {"kept_graphs": "4"},
        {"allow_namespaces": "x"},
    ],
    ids=str,
)
def test_wrong_options_of_load_are_refused_by_name(options, path):
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}= is wrong"):
        aotair.load(path, **options)


def test_other_wrong_arguments_are_refused(path, tmp_path):
    with pytest.raises(DeviceError, match="unknown device 3"):
        aotair.load(path, device=3)
    for size in (-5, "much", 1.5):
        with pytest.raises(ArgumentError, match="nbytes= is wrong"):
            aotair.graph_pool("cpu", size)
    with pytest.raises(RecipeError, match="this is no recipe"):
        aotair.build(3)
    with pytest.raises(RecipeError, match="config= is none"):
        aotair.build(model=Optional(), inputs={"x": torch.zeros(3)}, config={})


def test_what_a_model_cannot_do_is_said(path):
    model = aotair.load(path)
    with pytest.raises(ArgumentError, match="load_weights takes a path"):
        model.load_weights({})
    with pytest.raises(TypeError, match="load the artifact again instead"):
        pickle.dumps(model)
    model.close()
    for use in (lambda: model.state, model.reset_state, lambda: model(torch.zeros(3))):
        with pytest.raises(ClosedError):
            use()


def test_files_that_cannot_be_written_are_one_line(path, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"name: a\nmodel: {{factory: '{__file__}:Optional'}}\ninputs: {{x: {{shape: [3], dtype: float32}}}}\n"
    )
    (tmp_path / "file").write_text("")
    for args in (
        ["build", str(recipe), "-o", str(tmp_path / "file" / "a.aotair")],
        ["build", str(recipe), "-o", str(tmp_path / "b.aotair"), "--dump-graph", str(tmp_path / "file")],
    ):
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 1 and "error: " in result.output and "Traceback" not in result.output


class Noisy(nn.Module):
    def forward(self, x):
        return x.view(2, -1) + torch.randn(x.numel()).view(2, -1)


def test_random_numbers_are_refused_with_the_line_though_sizes_are_refused_too(tmp_path):
    with pytest.raises(UnsupportedError, match=r"draws random numbers: aten\.randn.*test_newcomers\.py"):
        aotair.build(model=Noisy(), inputs=ROWS, buckets={"n": [2, 4]}, out=tmp_path / "a.aotair")

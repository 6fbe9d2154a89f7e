"""Products with weights read bfloat16, and what lies between them makes no detour: fires, declines, near numbers."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from graphs import answers, run_pass, targets
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import aotair
from aotair.errors import RecipeError
from aotair.graph.derived import mark_constant
from aotair.graph.show import show
from aotair.passes import lower_precision
from aotair.recipe.config import CompilerConfig

aten = torch.ops.aten
WEIGHTS = [torch.randn(192, 192) / 14, torch.randn(192, 192) / 14, torch.randn(192)]
X = torch.randn(2, 8, 192)
HALF = torch.bfloat16


class _Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def trace(function, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """With composites whole, as a build has them."""
    return torch.export.export(_Of(function), inputs).graph_module


def lowered(function, *inputs: torch.Tensor, constants: int = 3, limit: int | None = None):
    """The graph after the pass, whose last inputs are constants, beside the answers of the graph before."""
    module = trace(function, *inputs)
    for node in module.graph.find_nodes(op="placeholder")[len(inputs) - constants :]:
        mark_constant(node)
    want = answers(trace(function, *inputs), inputs)
    edits = run_pass(lower_precision, module, limit)
    for got, wanted in zip(answers(module, inputs), want, strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        torch.testing.assert_close(got, wanted, atol=0.03, rtol=0.03)
    return module, edits


def casts(module: torch.fx.GraphModule) -> list[str]:
    """What is cast in each call, in order, and to which dtype."""
    found = []
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        if node.args[0].op != "placeholder" or node.args[0].name == "inputs_0":
            found.append(str(node.kwargs["dtype"]).removeprefix("torch."))
    return found


def _one(x, w, v, b):
    return (aten.linear.default(x, w, b),)


def _two(x, w, v, b):
    return (aten.linear.default(aten.gelu.default(aten.linear.default(x, w, b)), v),)


def _moved(x, w, v, b):
    turned = aten.transpose.int(aten.view.default(aten.linear.default(x, w, b), [2, 8, 4, 48]), 1, 2)
    back = aten.view.default(aten.clone.default(aten.transpose.int(turned, 1, 2), memory_format=None), [2, 8, 192])
    return (aten.linear.default(back, v, b),)


def _shared(x, w, v, b):
    return (aten.linear.default(x, w, b) + aten.linear.default(x, v, b),)


def _flat(x, w, v, b):
    rows = aten.view.default(x, [16, 192])
    return (aten.addmm.default(b, rows, aten.t.default(w)), aten.mm.default(rows, v))


def _residual(x, w, v, b):
    y = x + aten.linear.default(x, w, b)
    return (aten.linear.default(aten.layer_norm.default(y, [192]), v, b) + y,)


@pytest.mark.parametrize(
    ("function", "count", "each_call"),
    [
        (_one, 1, ["bfloat16", "float32"]),
        (_two, 2, ["bfloat16", "float32"]),
        (_moved, 2, ["bfloat16", "float32"]),
        (_shared, 2, ["bfloat16", "float32", "float32"]),
        (_flat, 2, ["bfloat16", "float32", "float32"]),
        (_residual, 2, ["bfloat16", "float32", "bfloat16", "float32"]),
    ],
)
def test_it_fires(function, count: int, each_call: list[str]):
    module, edits = lowered(function, X, *WEIGHTS)
    assert edits.count == count and casts(module) == each_call, show(module)
    for node in module.graph.nodes:
        if node.target in (aten.linear.default, aten.mm.default, aten.addmm.default, aten.gelu.default):
            assert {one.meta["val"].dtype for one in node.all_input_nodes} == {HALF}, show(module)
        if node.target in (aten.layer_norm.default, aten.add.Tensor):
            assert {one.meta["val"].dtype for one in node.all_input_nodes} == {torch.float32}, show(module)


def test_as_many_as_it_may():
    module, edits = lowered(_shared, X, *WEIGHTS, limit=1)
    assert edits.count == 1 and casts(module) == ["bfloat16", "float32"]


def _attended(x, w, v, b, *mask):
    heads = [
        aten.transpose.int(aten.view.default(aten.linear.default(x, one, b), [2, 8, 4, 48]), 1, 2) for one in (w, v, w)
    ]
    found = aten.scaled_dot_product_attention.default(*heads, *mask)
    return (aten.linear.default(aten.reshape.default(aten.transpose.int(found, 1, 2), [2, 8, 192]), v, b),)


def test_attention_over_results_of_products_reads_them_as_they_are():
    module, edits = lowered(_attended, X, *WEIGHTS)
    assert edits.count == 5 and casts(module) == ["bfloat16", "float32"], show(module)
    (attention,) = module.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    assert {one.meta["val"].dtype for one in attention.all_input_nodes} == {HALF}


def _masked_by_numbers(x, w, v, b):
    return _attended(x, w, v, b, x[:, :, :8].unsqueeze(1))


def _over_others(x, w, v, b):
    q = aten.view.default(aten.linear.default(x, w, b), [2, 1, 8, 192])
    return (aten.scaled_dot_product_attention.default(q, x.unsqueeze(1), x.unsqueeze(1)),)


@pytest.mark.parametrize(
    ("function", "why"),
    [(_masked_by_numbers, "has numbers, which bfloat16 would round"), (_over_others, "is no result of a product")],
)
def test_other_attention_stays_in_float32(function, why: str):
    module, edits = lowered(function, X, *WEIGHTS)
    assert any(why in one.text and not one.rewritten for one in edits.accounts)
    (attention,) = module.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    assert {one.meta["val"].dtype for one in attention.all_input_nodes} == {torch.float32}


@pytest.mark.parametrize(
    ("function", "inputs", "constants", "why"),
    [
        (_one, (X, *WEIGHTS), 0, "depends on the call"),
        (_one, (X[..., :64], torch.randn(64, 64) / 8, WEIGHTS[1], torch.randn(64)), 3, "casts would take longer"),
        (lambda x, w, v, b: (aten.linear.default(x, w, b) + w.sum(),), (X, *WEIGHTS), 3, "would be stored twice"),
        (lambda x, w, v, b: (aten.linear.default(x, w, b) * aten.t.default(w)[0],), (X, *WEIGHTS), 3, "stored twice"),
        (lambda x, w, v, b: (aten.mm.default(w, x[0].t()),), (X, *WEIGHTS), 3, "depends on the call"),
        (lambda x, w, v, b: (aten.linear.default(x, w),), (X.double(), *(w.double() for w in WEIGHTS)), 3, ""),
        (lambda x, w, v, b: (x * b,), (X, *WEIGHTS), 3, ""),
    ],
)
def test_it_declines(function, inputs, constants: int, why: str):
    module, edits = lowered(function, *inputs, constants=constants)
    assert not edits.count and targets(module) == targets(trace(function, *inputs))
    assert (why and why in " ".join(one.text for one in edits.accounts)) or not edits.accounts


def _input_written(x, w, v, b):
    first = aten.linear.default(x, w, b)
    aten.mul_.Tensor(x, 2.0)
    return (first + aten.linear.default(x, w, b),)


def _result_written(x, w, v, b):
    first = aten.linear.default(x, w, b)
    kept = aten.view.default(first, [16, 192])
    aten.mul_.Tensor(first, 2.0)
    return (aten.linear.default(aten.gelu.default(kept), v, b),)


@pytest.mark.parametrize("function", [_input_written, _result_written])
def test_what_is_written_over_is_read_when_it_was(function):
    values = (X, *WEIGHTS)
    module = make_fx(function, tracing_mode="fake")(*values)  # with linear taken apart
    for node in module.graph.find_nodes(op="placeholder")[1:]:
        mark_constant(node)
    want = answers(module, values)
    edits = run_pass(lower_precision, module)
    for got, wanted in zip(answers(module, values), want, strict=True):
        torch.testing.assert_close(got, wanted, atol=0.05, rtol=0.05)
    assert any("is written over" in one.text for one in edits.accounts)


def test_a_map_that_others_read_in_float32_is_computed_once():
    def function(x, w, v, b):
        wide = aten.gelu.default(aten.linear.default(x, w, b))
        return (aten.linear.default(wide, v, b), wide)

    module, _ = lowered(function, X, *WEIGHTS)
    assert targets(module).count("aten.gelu.default") == 1
    assert module.graph.find_nodes(op="call_function", target=aten.gelu.default)[0].meta["val"].dtype == torch.float32


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["linear", "gelu", "norm", "residual", "turn", "double", "tanh"]), max_size=9))
def test_random_chains_have_near_numbers(steps: list[str]):
    def function(x, w, v, b):
        y = x
        for number, step in enumerate(steps):
            if step == "linear":
                y = aten.linear.default(y, (w, v)[number % 2], b)
            elif step == "turn":
                y = aten.transpose.int(aten.clone.default(aten.transpose.int(y, 0, 1)), 0, 1)
            elif step == "double":
                y = aten.add.Tensor(y, y)
            else:
                maps = {"gelu": aten.gelu.default, "tanh": aten.tanh.default}
                y = (
                    y + x
                    if step == "residual"
                    else maps[step](y)
                    if step in maps
                    else aten.layer_norm.default(y, [192])
                )
        return (aten.layer_norm.default(y, [192]), y.sum())

    module = trace(function, X, *WEIGHTS)
    for node in module.graph.find_nodes(op="placeholder")[1:]:
        mark_constant(node)
    want = answers(trace(function, X, *WEIGHTS), (X, *WEIGHTS))[0]
    run_pass(lower_precision, module)
    got = answers(module, (X, *WEIGHTS))[0]
    assert torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), dim=0) > 0.999


# ---- from the recipe -------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.up, self.down = torch.nn.LayerNorm(192), torch.nn.Linear(192, 384), torch.nn.Linear(384, 192)
        self.table = torch.nn.Embedding(200, 192)
        self.tied = torch.nn.Linear(192, 200, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return self.tied(x)


def test_a_recipe_asks_for_it_and_checkpoints_of_float32_are_taken(tmp_path: Path):
    inputs = {"ids": {"shape": [1, "n"], "dtype": "int64", "range": [0, 200], "pad": 0}}
    recipe = {"inputs": inputs, "buckets": {"n": [4, 16]}}
    config = CompilerConfig()
    config.experimental_config.precision = "bf16"
    path = aotair.build(model=Block(0), out=tmp_path / "m.aotair", config=config, **recipe)
    ids = torch.arange(11).view(1, -1)
    with aotair.load(path) as served, torch.no_grad():
        stored = {c.name.partition(":")[0]: c.dtype for c in served.program.constants}
        assert stored["up.weight"] == stored["down.weight"] == "bfloat16"
        assert stored["table.weight"] == stored["norm.weight"] == "float32", "an embedding reads the tied weight too"
        _is_near(served(ids), Block(0)(ids))
        for seed in (1, 2):
            safetensors.torch.save_model(Block(seed), str(tmp_path / "w.safetensors"))
            served.load_weights(tmp_path / "w.safetensors")
            _is_near(served(ids), Block(seed)(ids))


def _is_near(got: torch.Tensor, want: torch.Tensor) -> None:
    error = (got - want).abs().max() / want.abs().max()
    assert 1e-7 < error < 0.01, error


def test_a_recipe_that_asks_for_another_is_refused(tmp_path: Path):
    x = {"input": {"shape": [3, 192], "dtype": "float32"}}
    part = {"config": {"experimental_config": {"precision": "fp8"}}}
    with pytest.raises(RecipeError, match="precision"):
        aotair.build({"name": "x", "model": {"factory": "torch.nn:Linear"}, "inputs": x, **part}, tmp_path / "m.aotair")


def test_without_folding_rounded_weights_are_not_stored():
    config = CompilerConfig()
    config.experimental_config.precision = "bf16"
    with pytest.raises(ValueError, match="fold_constants: false leaves out"):
        config.experimental_config.fold_constants = False

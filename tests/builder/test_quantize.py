"""Linear layers in int8: what is replaced, how far it moves the outputs, and that fusion finds the pairs it makes."""

import pytest
import torch
from cases import recipe

import aotair
from aotair.builder import build_with_summary
from aotair.errors import ModelError, RecipeError
from aotair.model.load import load_model
from aotair.model.quantize import quantize
from aotair.model.quantized_layers import Int8Linear
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Listener
from aotair.target.target import Target

BLOCK = recipe(
    "QuantBlock",
    {"x": {"shape": ["n", 32], "dtype": "float16"}, "residual": {"shape": ["n", 32], "dtype": "float16"}},
    {"n": [2, 4]},
    target={"device": "npu"},
    quantize={"linear": "int8_dynamic"},
    dtype="float16",
    verify={"atol": 2e-2, "rtol": 2e-2},
)


def changed(**parts) -> dict:
    return BLOCK | parts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_in_int8_is_near_the_layer(dtype, bias):
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48, bias=bias).to(dtype).requires_grad_(False)
    x = torch.randn(3, 5, 64).to(dtype)
    got, want = Int8Linear(linear, Target("npu"))(x), linear(x)
    assert got.dtype == dtype and got.shape == want.shape
    assert (got.float() - want.float()).norm() < 0.02 * want.float().norm()
    assert not torch.equal(got, want)


def test_a_row_of_zeros_is_none_of_nan():
    linear = torch.nn.Linear(8, 4).half().requires_grad_(False)
    linear.weight[1] = 0
    assert torch.equal(Int8Linear(linear, Target("npu"))(torch.zeros(2, 8).half()), linear.bias.expand(2, 4))


def test_a_build_reports_what_it_did_and_fuses_the_pairs(tmp_path):
    summary = build_with_summary(BLOCK, tmp_path / "x.aotair", Listener())
    assert summary.quantised.linears == 3, "two that share a norm, and the last; not lm_head"
    assert 0 < summary.quantised.relative_error < 0.05
    assert summary.rewrites["lift_rms_norm"] == 2 and summary.rewrites["lift_add_rms_norm"] == 1
    assert summary.rewrites["add_rms_norm_dynamic_quant"] == 1, "the norm that feeds quantised layers only"
    assert summary.misses["add_rms_norm_dynamic_quant"] >= 1


def test_skipped_layers_and_other_dtypes_stay():
    parsed = job_of(parse_recipe(changed(quantize={"linear": "int8_dynamic", "skip": ["*"]})))
    with pytest.raises(ModelError, match="no linear layer fits"):
        quantize(load_model(parsed), parsed)
    wide = changed(model=BLOCK["model"] | {"dtype": "float32"})
    wide["inputs"] = {name: item | {"dtype": "float32"} for name, item in BLOCK["inputs"].items()}
    parsed = job_of(parse_recipe(wide))
    with pytest.raises(ModelError, match="float16 or bfloat16"):
        quantize(load_model(parsed), parsed)
    parsed = job_of(parse_recipe(changed(quantize={"linear": "int8_dynamic", "skip": ["first", "lm_head"]})))
    model = load_model(parsed)
    assert quantize(model, parsed).linears == 2
    assert isinstance(model.first, torch.nn.Linear) and isinstance(model.second, Int8Linear)


def test_it_is_for_npus_only():
    with pytest.raises(RecipeError, match=r"quantize is for target\.device: npu"):
        aotair.build(changed(target={"device": "cpu"}), "nowhere.aotair")


def test_a_models_state_is_as_it_was():
    parsed = job_of(parse_recipe(BLOCK))
    model = load_model(parsed)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    quantize(model, parsed)
    assert before and all(torch.equal(before[name], dict(model.named_buffers())[name]) for name in before)

"""Experts over whole numbers: what they compute, what is stored, how far the outputs move, and what is refused."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import long
from mixtures import CONFIGS, IDS, MASK, OWN_FORM, Experts, Mixture, ops, recipe

import aotair
import aotair.ops.npu
from aotair.builder import build_with_summary
from aotair.errors import ModelError, RecipeError
from aotair.model import quantized_experts as under_test
from aotair.model.experts import experts_forward
from aotair.model.load import load_model
from aotair.model.quantize import quantize
from aotair.model.quantized_experts import QuantizedExperts, quantized_experts
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.report.progress import summary_table
from aotair.summary import Listener
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.artifact.requirements import needs_exact_int8
from aotair_runtime.weights.golden import replay_golden

CPU, NPU = Target("cpu"), Target("npu")
SCHEMES = ("int8_dynamic", "int8_weight_only")
HALVES = (torch.float16, torch.bfloat16)


def asked(name: str, scheme: str = "int8_dynamic", device: str = "cpu", dtype: str = "float32", layers=2, **quantize):
    data = recipe(name, layers=layers) | {"target": {"device": device}, "quantize": {"experts": scheme} | quantize}
    data["model"] |= {"dtype": dtype}
    del data["verify"]
    return data


def done(data: dict):
    """The model of a recipe, quantised, and what `quantize` says of it."""
    job = job_of(parse_recipe(data))
    model = load_model(job)
    return model, quantize(model, job)


def call(path: Path, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with aotair.load(path, device="cpu", enable_output_clone=True) as model:
        return model(ids, mask)


# ---- what they compute -----------------------------------------------------------------------------------------------


def by_hand(module: Experts, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, kind, alone: bool):
    """Token by token and expert by expert, in float64, scales rounded to `kind`; rows rounded too, unless `alone`."""

    def product(name: str, expert: int, row: torch.Tensor) -> torch.Tensor:
        matrix = getattr(module, name)[expert].double()
        matrix = matrix if module.is_transposed else matrix.T
        scale = (matrix.abs().amax(0) / 127).to(kind).double()
        scale = torch.where(scale == 0, 1.0, scale)
        matrix = (matrix / scale).round().clamp(-127, 127)
        step = 1.0 if alone else (row.abs().max() / 127 or torch.tensor(1.0)).item()
        rounded = row if alone else (row / step).round()
        return (rounded @ matrix) * step * scale + getattr(module, f"{name}_bias")[expert].double()

    made = torch.zeros(x.shape, dtype=torch.float64)
    for token, own in enumerate(chosen.tolist()):
        for place, expert in enumerate(own):
            both = product("gate_up_proj", expert, x[token].double()).to(x.dtype)
            inner = module._apply_gate(both).double()
            made[token] += weights[token, place].double() * product("down_proj", expert, inner)
    return made


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(1, 5),
    tokens=st.integers(1, 7),
    transposed=st.booleans(),
    seed=st.integers(0, 99),
    case=st.sampled_from(
        [(CPU, torch.float32, "int8_dynamic"), (CPU, torch.bfloat16, "int8_dynamic")]
        + [(NPU, dtype, scheme) for dtype in HALVES for scheme in SCHEMES]
    ),
)
def test_numbers_are_those_of_the_arithmetic(number, tokens, transposed, seed, case):
    target, dtype, scheme = case
    torch.manual_seed(seed)
    module = Experts(number, transposed, dtype).requires_grad_(False)
    alone = scheme == "int8_weight_only"
    x, chosen = torch.randn(tokens, 5).to(dtype), torch.rand(tokens, number).argsort(1)[:, : min(2, number)]
    x[0] = 0
    weights = torch.rand(chosen.shape).to(dtype)
    got = quantized_experts(module, scheme, target)(x, chosen, weights)
    kind = torch.float32 if target is CPU or (dtype == torch.float16 and not alone) else dtype
    want = by_hand(module, x, chosen, weights, kind, alone)
    # A row's last bit may move one of its numbers by a whole step.
    steps = {torch.float32: 1.5e-2, torch.float16: 2.5e-2, torch.bfloat16: 8e-2}[dtype]
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= steps * max(1.0, want.abs().max().item())
    with torch.no_grad():
        plain = experts_forward(module, x, chosen, weights)
    assert (plain - got).norm() <= 0.1 * max(plain.norm().item(), 1)


def test_rows_of_no_expert_add_nothing_where_a_rank_has_some_experts():
    torch.manual_seed(0)
    module = Experts(4, False).requires_grad_(False)
    x, chosen, weights = torch.randn(6, 5), torch.rand(6, 4).argsort(1)[:, :2], torch.rand(6, 2)
    whole = quantized_experts(module, "int8_dynamic", CPU)(x, chosen, weights)
    parts = torch.zeros_like(whole)
    for first in (0, 2):
        own = Experts(2, False)
        for name in dict(own.named_parameters()):
            setattr(own, name, torch.nn.Parameter(getattr(module, name)[first : first + 2], requires_grad=False))
        own.first_expert = torch.tensor([first])
        parts += quantized_experts(own, "int8_dynamic", CPU)(x, chosen, weights)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


def test_the_tensors_are_the_modules_own_and_nothing_else_of_it_is_shared():
    module = Experts(2, False)
    made = quantized_experts(module, "int8_dynamic", CPU)
    assert isinstance(made, QuantizedExperts) and isinstance(made, Experts) and not isinstance(module, QuantizedExperts)
    assert all(getattr(made, name) is own for name, own in module.named_parameters())
    module.register_forward_hook(lambda *_: None)
    assert not made._forward_hooks and made._parameters is not module._parameters


# ---- builds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - OWN_FORM))
def test_every_mixture_has_experts_of_int8(name):
    model, made = done(asked(name))
    found = {key for key, module in model.named_modules() if isinstance(module, QuantizedExperts)}
    assert found == set(made.layers) and made.experts == len(found) > 0
    ids, mask = torch.randint(0, 64, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    with torch.no_grad():
        got, want = model(ids, mask), load_model(job_of(parse_recipe(asked(name))))(ids, mask)
    assert not torch.equal(got, want) and (got - want).norm() <= 0.1 * want.norm()


@pytest.mark.parametrize("name", [long("deepseek_v3"), "gpt_oss"])  # with groups of experts, and with biases
def test_mixtures_build_with_experts_of_int8(name, tmp_path):
    summary = build_with_summary(asked(name), tmp_path / "x.aotair", Listener())
    made = summary.quantised
    assert (made.scheme, made.linears, made.expert_scheme) == (None, 0, "int8_dynamic")
    assert made.experts == len(made.layers) > 0 and all(name.endswith("experts") for name in made.layers)
    assert 0 < made.relative_error < 0.1 and made.cosine > 0.99
    found = ops(tmp_path / "x.aotair")
    assert "air::grouped_int_mm.out" in found and "air::grouped_mm.out" not in found
    assert needs_exact_int8(read_program(tmp_path / "x.aotair"))
    ids, mask = torch.randint(0, 64, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    quantised, _ = done(asked(name))
    with torch.no_grad():
        want = quantised(ids, mask)
    away = (call(tmp_path / "x.aotair", ids, mask) - want).abs().max()
    assert away <= 5e-2 * want.abs().max()


@pytest.mark.long
def test_a_factory_need_not_choose_the_form_of_its_experts(tmp_path):
    data = asked("mixtral", layers=1)
    data["model"]["kwargs"] |= {"experts": "eager"}
    path = aotair.build(data, tmp_path / "x.aotair")
    assert "air::grouped_int_mm.out" in ops(path)


@pytest.mark.parametrize(
    "name, scheme",
    [
        ("mixtral", SCHEMES[0]),
        long("gpt_oss", SCHEMES[0]),
        long("gpt_oss", SCHEMES[1]),
        long("deepseek_v3", SCHEMES[1]),
    ],
)
def test_for_an_npu_experts_are_one_of_its_ops(name, scheme, tmp_path):
    path = aotair.build(asked(name, scheme, "npu", "float16", layers=1), tmp_path / "x.aotair")
    found = ops(path)
    assert "npu::npu_grouped_matmul" in found and not {op for op in found if op.startswith("air::")}
    assert ("npu::npu_dynamic_quant" in found) == (scheme == "int8_dynamic")
    assert {constant.dtype for constant in of_experts(path)} == {"int8"}
    with aotair.load(path, device="cpu") as model:
        assert all(result.within for result in replay_golden(model))


def of_experts(path: Path) -> list:
    """The constants that are matrices of experts, however they lie."""
    program = read_program(path)
    return [
        c for c in program.constants if re.search(r"experts\.\w+_proj(:(to_copy|clone))?$", c.name) and c.shape[-1] > 1
    ]


@pytest.mark.parametrize(
    "device, dtype, share", [("cpu", "float32", 4), long("cpu", "bfloat16", 2), ("npu", "float16", 2)]
)
def test_the_floats_of_experts_are_not_stored(device, dtype, share, tmp_path):
    whole = asked("mixtral", device=device, dtype=dtype, layers=1)
    # Nothing is padded here: in bfloat16 another number of rows may choose another of two experts that are as good.
    whole |= {"inputs": {"input_ids": unpadded(IDS), "attention_mask": unpadded(MASK)}, "buckets": {}}
    floats = {key: part for key, part in whole.items() if key != "quantize"}
    sizes = {}
    for name, data in (("floats", floats), ("whole", whole)):
        path = aotair.build(data, tmp_path / f"{name}.aotair")
        tensors = safetensors.torch.load_file(path / "weights.safetensors")
        sizes[name] = sum(tensor.nbytes for key, tensor in tensors.items() if re.search(r"experts\.\w+_proj", key))
        if name == "whole":
            big = [
                tensor
                for key, tensor in tensors.items()
                if "_proj" in key and "experts" in key and tensor[0].numel() > 1
            ]
            assert big and all(tensor.dtype == torch.int8 for tensor in big)
    assert sizes["whole"] < sizes["floats"] / share * 1.1, "and their scales"


def unpadded(spec: dict) -> dict:
    return {key: part for key, part in spec.items() if key != "pad"} | {"shape": [2, 8]}


@pytest.mark.parametrize("device, dtype", [("cpu", "float32"), long("npu", "float16")])
def test_another_checkpoint_is_loaded_as_a_fresh_build_of_it_would_be(device, dtype, tmp_path):
    checkpoint = tmp_path / "model.safetensors"
    other = Mixture("mixtral", seed=1, layers=1).to(getattr(torch, dtype))
    safetensors.torch.save_file(dict(other.state_dict()), checkpoint)
    data = asked("mixtral", device=device, dtype=dtype, layers=1)
    model = aotair.load(aotair.build(data, tmp_path / "first.aotair"), device="cpu", enable_output_clone=True)
    data["model"] |= {"weights": str(checkpoint)}
    fresh = aotair.build(data, tmp_path / "second.aotair")
    ids, mask = torch.randint(0, 64, (2, 5)), torch.ones(2, 5, dtype=torch.int64)
    before = model(ids, mask)
    model.load_weights(checkpoint)
    assert torch.equal(model(ids, mask), call(fresh, ids, mask)) and not torch.equal(before, model(ids, mask))


@pytest.mark.parametrize("mesh", [long({"ep": 2}), {"tp": 2}, long({"tp": 2, "ep": 2})], ids=str)
def test_ranks_share_out_experts_of_int8(mesh, tmp_path):
    data = asked("mixtral", layers=1) | {"mesh": mesh}
    shared = build_with_summary(data, tmp_path / "x.aotair", Listener()).shared_out
    assert shared.styles["expert" if "ep" in mesh else "expert_width"] == 1 and not shared.kept
    assert all(c.dtype == "int8" and c.shard is not None for c in of_experts(tmp_path / "x.aotair"))


def test_linear_layers_and_experts_together(tmp_path):
    summary = build_with_summary(asked("qwen3_moe", linear="int8_dynamic"), tmp_path / "x.aotair", Listener())
    made = summary.quantised
    assert (made.scheme, made.expert_scheme, made.experts) == ("int8_dynamic", "int8_dynamic", 2)
    assert made.linears == len(made.layers) - 2
    text, page = summary_table(summary), (tmp_path / "x.aotair" / "report.html").read_text()
    assert re.search(r"linear layers in int8_dynamic +\d", text)
    assert re.search(r"modules of experts in int8_dynamic +2", text)
    assert f"<p>{made.linears} linear layers in int8_dynamic and 2 modules of experts in int8_dynamic, over" in page
    assert json.loads(json.dumps(summary.as_dict()))["quantised"]["expert_scheme"] == "int8_dynamic"


def test_skipped_experts_stay():
    model, made = done(asked("mixtral", skip=["*layers.0.*"]))
    assert made.experts == 1 and list(made.layers) == ["model.model.layers.1.mlp.experts"]
    first, second = (layer.mlp.experts for layer in model.model.model.layers)
    assert isinstance(second, QuantizedExperts) and not isinstance(first, QuantizedExperts)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_recipe_says_what_to_quantise():
    with pytest.raises(RecipeError, match="say what to quantise: linear, experts or kv_cache"):
        aotair.build(recipe("mixtral") | {"quantize": {"skip": []}}, "nowhere.aotair")
    with pytest.raises(RecipeError, match=r"group_size is for .* of linear, not experts"):
        aotair.build(asked("mixtral", group_size=32), "nowhere.aotair")
    with pytest.raises(RecipeError, match=r"(?s)quantize.experts.*int8_dynamic.*int8_weight_only"):
        aotair.build(asked("mixtral", "int4_weight_only"), "nowhere.aotair")


@pytest.mark.parametrize(
    "device, scheme, has",
    [
        ("cpu", "int8_weight_only", "int8_dynamic"),
        ("cuda", "int8_dynamic", "none"),
        ("cuda", "int8_weight_only", "none"),
    ],
)
def test_what_a_target_has_no_kernel_for_is_refused_with_what_it_has(device, scheme, has):
    with pytest.raises(RecipeError, match=rf"quantize.experts: {device} has no kernel for {scheme}; it has {has}"):
        aotair.build(asked("mixtral", scheme, device), "nowhere.aotair")


@pytest.mark.parametrize(
    "data, said",
    [
        (asked("llama4"), r"(?s)no experts fit.*a form of their own: .*experts \(Llama4TextExperts\)"),
        (asked("mixtral", skip=["*"]), r"(?s)no experts fit.*experts \(torch.float32\).*skip: \['\*'\]"),
        (asked("mixtral", device="npu"), r"(?s)no experts fit.*float16 or bfloat16.*experts \(torch.float32\)"),
        (asked("mixtral", dtype="float64"), "float16 or bfloat16 or float32"),
    ],
)
def test_experts_that_do_not_fit(data, said):
    with pytest.raises(ModelError, match=said):
        done(data)


def test_a_model_without_experts(tmp_path):
    x = {"input": {"shape": [2, 8], "dtype": "float32"}}
    with pytest.raises(ModelError, match=r"(?s)got: a model without such experts.*quantize.linear"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        aotair.build(model=model, out=tmp_path / "m.aotair", inputs=x, quantize={"experts": "int8_dynamic"})


@pytest.mark.parametrize("kind", ["hook", "forward"])
def test_experts_with_hooks_or_a_forward_of_their_own_are_refused_and_may_be_skipped(kind):
    job = job_of(parse_recipe(asked("mixtral")))
    model = load_model(job)
    experts = model.model.model.layers[0].mlp.experts
    if kind == "hook":
        experts.register_forward_hook(lambda module, given, answer: answer * 2)
    else:
        experts.forward = experts.forward
    with pytest.raises(ModelError, match=r"(?s)experts that do more than their class says.*layers.0.*quantize.skip"):
        quantize(model, job)
    assert quantize(model, job_of(parse_recipe(asked("mixtral", skip=["*layers.0.*"])))).experts == 1


@pytest.mark.parametrize(
    "limit, most, device, said",
    [
        ("MOST_INPUTS", 50, "cpu", "64 inputs: sums of more than 50 products of int8 may not fit int32"),
        ("NPU_MOST", 90, "npu", "more than 90 rows or columns"),
        ("_NPU_MOST_EXPERTS", 3, "npu", "4 experts, more than 3"),
    ],
)
def test_experts_that_the_kernel_does_not_take_are_named(limit, most, device, said, monkeypatch):
    monkeypatch.setattr(under_test, limit, most)
    with pytest.raises(ModelError, match=rf"(?s)int8_dynamic has no kernel for.*layers.0.mlp.experts \({said}\)"):
        done(asked("mixtral", device=device, dtype="float16"))


def test_experts_without_numbers_are_named():
    empty = Experts(2, False)
    empty.down_proj = torch.nn.Parameter(torch.zeros(2, 5, 0))
    assert under_test.unfit_experts(empty, CPU) == "a weight without elements"

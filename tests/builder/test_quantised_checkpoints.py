"""Checkpoints that other tools have quantised: the numbers of the tool's own model, built and after a reload."""

import json
from pathlib import Path

import pytest
import quantised_layouts as layouts
import quantised_tools as tools
import torch
from marks import long
from nodes import Node
from quantised_cases import (
    AWQ,
    BIAS,
    COMPRESSED,
    GPTQ,
    STEPS,
    TOOLS,
    TORCHAO,
    change,
    compressed,
    modules,
    near,
    packed,
    recipe,
    slim,
    x,
)

import aotair
from aotair.errors import ModelError
from aotair.model.checkpoints.activations import Activations, rounded
from aotair.model.checkpoints.layer import StoredLinear
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.target.target import Target
from aotair_runtime.errors import WeightsError

# ---- compressed-tensors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", COMPRESSED)
def test_compressed_tensors_numbers(scheme: str, tmp_path: Path):
    tool = compressed(tmp_path / "w", COMPRESSED[scheme])
    model = modules(tmp_path / "w")
    assert [type(model[n]) for n in (0, 2)] == [StoredLinear] * 2
    near(model(x()), tool(x()[None])[0])  # the tool takes a batch of sequences for tokens, and two dimensions for one


def test_a_symmetric_scale_rounds_negative_numbers_as_positive_ones():
    tokens = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    symmetric = Activations(floating=False, dynamic=True)
    held = rounded(tokens, symmetric, None)
    assert torch.equal(rounded(-tokens, symmetric, None), -held)
    assert ((held - tokens).abs() <= tokens.abs().amax(1, keepdim=True) / 127.5 * 0.501).all()
    assert torch.equal(rounded(torch.zeros(2, 8), symmetric, None), torch.zeros(2, 8))


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8, static, zero points", "w4a16, zero points", "float8"])
def test_a_second_checkpoint_of_the_format_is_a_fresh_build_of_it_bit_for_bit(scheme: str, tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    compressed(first, COMPRESSED[scheme])
    tool = compressed(second, COMPRESSED[scheme], seed=5)
    steps = STEPS if "input_activations" in COMPRESSED[scheme] else {}
    fresh = aotair.load(aotair.build(recipe(second, **steps), tmp_path / "second.aotair"))
    model = aotair.load(aotair.build(recipe(first, **steps), tmp_path / "first.aotair"))
    before = model(x()).clone()
    model.load_weights(second)
    after = model(x()).clone()
    assert not torch.equal(after, before) and torch.equal(after, fresh(x()))
    near(after, tool(x()[None])[0])


def test_a_second_checkpoint_takes_the_programs_of_the_first(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 5)):
        compressed(folder, COMPRESSED["w4a16, zero points"], seed)
    artifact = aotair.build(recipe(first), tmp_path / "first.aotair")
    like = aotair.load(aotair.build(recipe(second), tmp_path / "second.aotair", like=artifact))
    model = aotair.load(artifact)
    model.load_weights(tmp_path / "second.aotair")
    assert torch.equal(model(x()), like(x()))


def test_groups_of_inputs_in_any_order(tmp_path: Path):
    """As older versions wrote `actorder: group`: rows lie as they were, and g_idx names the group of each input."""
    compressed(tmp_path / "w", COMPRESSED["w4a16"])
    file = tmp_path / "w" / "model.safetensors"
    stored = tools.safetensors.torch.load_file(file)
    dense = modules(tmp_path / "w")
    weights = {
        n: dense[n]._scheme.product(torch.eye(d), dense[n].stored(), None, Target("cpu")) for n, d in ((0, 64), (2, 96))
    }
    for name, depth in (("0", 64), ("2", 96)):
        stored[f"{name}.weight_g_idx"] = (torch.arange(depth) // 32)[torch.randperm(depth)].to(torch.int32)
    tools.safetensors.torch.save_file(stored, file)
    change(tmp_path / "w", lambda c: c["config_groups"]["group_0"]["weights"].update(actorder="group"))
    model = modules(tmp_path / "w")
    for n, weight in weights.items():
        groups_of, scale = stored[f"{n}.weight_g_idx"].long(), stored[f"{n}.weight_scale"]
        ordered = torch.arange(groups_of.numel()) // 32
        want = weight.t() / scale[:, ordered] * scale[:, groups_of]
        got = model[n]._scheme.product(torch.eye(groups_of.numel()), model[n].stored(), None, Target("cpu"))
        near(got.t(), want)
    aotair.load(aotair.build(recipe(tmp_path / "w"), tmp_path / "x.aotair"))


def test_zero_points_of_symmetric_weights_as_early_versions_wrote_them(tmp_path: Path):
    tool = compressed(tmp_path / "w", COMPRESSED["w8a8, static"])
    change(tmp_path / "w", lambda c: c.update(quantization_status="frozen"))
    file = tmp_path / "w" / "model.safetensors"
    stored = tools.safetensors.torch.load_file(file)
    for name in ("0", "2"):
        stored[f"{name}.weight_zero_point"] = torch.zeros_like(stored[f"{name}.weight_scale"], dtype=torch.int8)
        stored[f"{name}.input_zero_point"] = torch.zeros(1, dtype=torch.int8)
    tools.safetensors.torch.save_file(stored, file)
    near(modules(tmp_path / "w")(x()), tool(x()))
    stored["2.weight_zero_point"][7] = 1
    tools.safetensors.torch.save_file(stored, file)
    with pytest.raises(ModelError, match="2: weight_zero_point is not 0"):
        modules(tmp_path / "w")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8, static, zero points", "w4a16", "w4a16, zero points"])
def test_the_numbers_on_each_device(scheme: str, dtype: str, tmp_path: Path, node: Node):
    with torch.device("cpu"):
        tool = compressed(tmp_path / "w", COMPRESSED[scheme], dtype=getattr(torch, dtype))
        artifact = aotair.build(recipe(tmp_path / "w", node.kind, dtype), tmp_path / "x.aotair")
        given = x().to(getattr(torch, dtype))
        with aotair.load(artifact, device=node.kind) as model:
            got = model(given.to(model.device)).cpu()
        want = tool.float()(given.float()[None])[0] if "a16" in scheme else tool(given[None])[0].float()
    assert (got.float() - want).norm() < (0.02 if dtype == "float16" else 0.04) * want.norm()


@pytest.mark.parametrize("kind", ["w8a8", "w8a8, static, zero points", "int8 dynamic", "int8 static"])
def test_an_npu_multiplies_int8_by_int8(kind: str, tmp_path: Path):
    if kind in COMPRESSED:
        compressed(tmp_path / "w", COMPRESSED[kind], dtype=torch.float16)
    else:
        tools.by_torchao(tools.stack(0, torch.float16), tmp_path / "w", TORCHAO[kind]())
    artifact = aotair.build(recipe(tmp_path / "w", "npu", "float16"), tmp_path / "x.aotair")
    with aotair.load(artifact, device="cpu") as model:
        ops = {op.name.partition(".")[0] for op in model.program.ops}
        assert {"npu::npu_quant_matmul", f"npu::npu_{'quantize' if 'static' in kind else 'dynamic_quant'}"} <= ops


# ---- what a configuration says of modules --------------------------------------------------------------------------


def test_ignored_modules_stay_and_groups_mean_modules_by_name_before_class(tmp_path: Path):
    groups = {
        "group_0": {"targets": ["Linear"], **COMPRESSED["w8a8, static"]},
        "group_1": {"targets": ["re:.*mlp.*down_proj"], **COMPRESSED["w4a16"]},
        "group_2": {"targets": ["model.layers.1.mlp.down_proj"], **COMPRESSED["w8a16, zero points"]},
    }
    tool = tools.compress(tools.llama(), tmp_path / "w", groups, ["lm_head", "re:.*layers.0.self_attn.*"])
    said = json.loads((tmp_path / "w" / "config.json").read_text())["quantization_config"]
    assert said["format"] == "mixed-precision"
    model = llama(tmp_path / "w")
    kinds = {name: type(module) for name, module in model.named_modules() if name.endswith(("proj", "head"))}
    assert kinds["lm_head"] is kinds["model.layers.0.self_attn.q_proj"] is torch.nn.Linear
    assert kinds["model.layers.1.self_attn.q_proj"] is kinds["model.layers.0.mlp.up_proj"] is StoredLinear
    down = [dict(layer.mlp.down_proj.named_buffers()) for layer in model.model.layers]
    assert "weight_zero_point" not in down[0] and "weight_zero_point" in down[1]
    ids = torch.randint(64, (2, 7))
    near(model(ids).logits, tool(ids).logits)


def llama(weights: Path, dtype: str | None = None) -> torch.nn.Module:
    parsed = {
        "name": "llama",
        "model": {"factory": f"{TOOLS}:llama", "kwargs": {"seed": 9}, "weights": str(weights), "dtype": dtype},
        "inputs": {"input_ids": {"shape": [2, 7], "dtype": "int64", "range": [0, 64]}},
    }
    return load_model(job_of(parse_recipe(parsed)))


def test_a_whole_llama_through_a_build(tmp_path: Path):
    groups = {"group_0": {"targets": ["Linear"], **COMPRESSED["w4a16, zero points"]}}
    tool = tools.compress(tools.llama(), tmp_path / "w", groups, ["lm_head"])
    path = aotair.build(
        {
            "name": "llama",
            "model": {"factory": f"{TOOLS}:logits", "kwargs": {"seed": 9}, "weights": str(tmp_path / "w")},
            "inputs": {"ids": {"shape": [2, "seq"], "dtype": "int64", "range": [0, 64]}},
            "buckets": {"seq": [7]},
        },
        tmp_path / "llama.aotair",
    )
    ids = torch.randint(64, (2, 7))
    near(aotair.load(path)(ids), tool(ids).logits)


def test_the_scales_of_caches_are_kept_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    groups = {"group_0": {"targets": ["Linear"], **COMPRESSED["w8a8, static"]}}
    tool = tools.compress(tools.llama(), tmp_path / "w", groups, ["lm_head"])
    file = tmp_path / "w" / "model.safetensors"
    stored = tools.safetensors.torch.load_file(file)
    stored |= {f"model.layers.{n}.self_attn.{which}_scale": torch.ones(1) for n in range(2) for which in "kv"}
    tools.safetensors.torch.save_file(stored, file)
    with caplog.at_level("WARNING", logger="aotair"):
        model = llama(tmp_path / "w")
    assert "scales of caches are not used" in caplog.text
    ids = torch.randint(64, (2, 7))
    near(model(ids).logits, tool(ids).logits)


# ---- GPTQ and AWQ --------------------------------------------------------------------------------------------------


def reloads(folder: Path, want) -> None:
    """A model of the checkpoint `first` takes `second`, and answers as a build of that, and as `want`."""
    model = aotair.load(aotair.build(recipe(folder / "first"), folder / "first.aotair"))
    fresh = aotair.load(aotair.build(recipe(folder / "second"), folder / "second.aotair"))
    model.load_weights(folder / "second")
    assert torch.equal(model(x()), fresh(x()))
    near(model(x()), want(x()))


@pytest.mark.parametrize(
    "options, more",
    [
        ({}, {}),
        long({"bits": 8}, {"bits": 8}),
        ({"version": 2}, {"checkpoint_format": "gptq_v2"}),
        long({"shuffled": True}, {"desc_act": True}),
        ({"shuffled": True, "bits": 8}, {"desc_act": True, "bits": 8}),
    ],
    ids=lambda part: ", ".join(map(str, part)) or "plain",
)
def test_gptq_numbers_and_a_reload(options: dict, more: dict, tmp_path: Path):
    packed(layouts.gptq, tmp_path / "first", GPTQ | more, **options)
    want = packed(layouts.gptq, tmp_path / "second", GPTQ | more, seed=7, **options)
    near(modules(tmp_path / "second")(x()), want(x()))
    reloads(tmp_path, want)


def test_awq_numbers_and_a_reload(tmp_path: Path):
    packed(layouts.awq, tmp_path / "first", AWQ)
    want = packed(layouts.awq, tmp_path / "second", AWQ, seed=7)
    reloads(tmp_path, want)


def test_a_reload_whose_inputs_lie_in_another_order_is_refused(tmp_path: Path):
    packed(layouts.gptq, tmp_path / "first", GPTQ)
    packed(layouts.gptq, tmp_path / "second", GPTQ, shuffled=True)
    model = aotair.load(aotair.build(recipe(tmp_path / "first"), tmp_path / "x.aotair"))
    before = model(x()).clone()
    with pytest.raises(WeightsError, match="NaN"):
        model.load_weights(tmp_path / "second")
    assert torch.equal(model(x()), before)


def test_gptq_says_of_modules_by_patterns_what_differs(tmp_path: Path):
    first, one = layouts.gptq("0", 0, 96, 64, 16, 8)
    plain = torch.randn(40, 96)
    dynamic = {"+:0$": {"bits": 8, "group_size": 16}, "-:2": {}}
    layouts.configured(tmp_path / "w", first | {"2.weight": plain, "0.bias": BIAS}, GPTQ | {"dynamic": dynamic})
    near(modules(tmp_path / "w")(x()), (x() @ one.t() + BIAS).relu() @ plain.t())


def test_a_bias_that_the_checkpoint_alone_has(tmp_path: Path):
    first, one = layouts.gptq("0", 0, 96, 64, 32)
    second, two = layouts.gptq("2", 1, 40, 96, 32)
    added = torch.randn(40)
    layouts.configured(tmp_path / "w", first | second | {"0.bias": BIAS, "2.bias": added}, GPTQ)
    near(modules(tmp_path / "w")(x()), (x() @ one.t() + BIAS).relu() @ two.t() + added)


# ---- msModelSlim ---------------------------------------------------------------------------------------------------


def first_layer(kind: str, t: dict[str, torch.Tensor], given: torch.Tensor) -> torch.Tensor:
    """What msModelSlim says that a layer of a kind computes, in whole numbers and float64."""
    rows = t["0.weight"].double()
    if kind == "W8A8":
        at = (given.double() / t["0.input_scale"] + t["0.input_offset"]).round().clamp(-128, 127)
        deq = t["0.deq_scale"].to(torch.int32).view(torch.float32).double()
        return (at @ rows.t() + t["0.quant_bias"]) * deq
    if kind == "W4A8_DYNAMIC":
        low, high = (t["0.weight"] << 4) >> 4, t["0.weight"] >> 4
        rows = torch.stack([low, high], 1).flatten(0, 1).double()
    weight = (rows - t["0.weight_offset"]) * t["0.weight_scale"]
    if kind != "W8A16":
        scale = given.double().abs().amax(1, keepdim=True) / 127.5
        given = (given / scale).round().clamp(-128, 127) * scale
    return given.double() @ weight.t() + BIAS


@pytest.mark.parametrize("kind", ["W8A8", "W8A8_DYNAMIC", "W8A16", "W4A8_DYNAMIC"])
def test_msmodelslim_numbers_and_a_reload(kind: str, tmp_path: Path):
    slim(tmp_path / "first", kind)
    tensors = slim(tmp_path / "second", kind, seed=7)
    want = (first_layer(kind, tensors, x()).relu() @ tensors["2.weight"].double().t()).float()
    model = aotair.load(aotair.build(recipe(tmp_path / "first", **STEPS), tmp_path / "first.aotair"))
    fresh = aotair.load(aotair.build(recipe(tmp_path / "second", **STEPS), tmp_path / "second.aotair"))
    model.load_weights(tmp_path / "second")
    assert torch.equal(model(x()), fresh(x()))
    near(model(x()), want, 1e-4)


@pytest.mark.parametrize("kind", ["W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC"])
def test_msmodelslim_on_each_device(kind: str, tmp_path: Path, node: Node):
    with torch.device("cpu"):
        tensors = slim(tmp_path / "w", kind)
        given = x().half()
        want = first_layer(kind, tensors, given.float()).relu() @ tensors["2.weight"].double().t()
        artifact = aotair.build(recipe(tmp_path / "w", node.kind, "float16"), tmp_path / "x.aotair")
        with aotair.load(artifact, device=node.kind) as model:
            got = model(given.to(model.device)).cpu()
    assert (got.double() - want).norm() < 0.02 * want.norm()


def test_an_offset_of_weights_is_refused_where_none_is_served(tmp_path: Path):
    tensors = slim(tmp_path / "w", "W8A8_DYNAMIC")
    tensors["0.weight_offset"][3] = 1
    layouts.described(tmp_path / "w", tensors, {"0": "W8A8_DYNAMIC", "2": "FLOAT"})
    with pytest.raises(ModelError, match="weight_offset is not 0"):
        modules(tmp_path / "w")


# ---- torchao -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TORCHAO)
def test_torchao_numbers_and_a_reload(kind: str, tmp_path: Path):
    tools.by_torchao(tools.stack(0), tmp_path / "first", TORCHAO[kind]())
    tool = tools.by_torchao(tools.stack(5), tmp_path / "second", TORCHAO[kind]())
    near(modules(tmp_path / "second")(x()), tool(x()))
    model = aotair.load(aotair.build(recipe(tmp_path / "first", **STEPS), tmp_path / "first.aotair"))
    fresh = aotair.load(aotair.build(recipe(tmp_path / "second", **STEPS), tmp_path / "second.aotair"))
    model.load_weights(tmp_path / "second")
    assert torch.equal(model(x()), fresh(x()))


def test_torchaos_int4_and_float8_tensors_of_a_gpu(tmp_path: Path):
    """Only a GPU makes them: their classes are given numbers here, and their layout is the classes' own."""
    from torchao.quantization import Float8Tensor, Int4Tensor, PerRow
    from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs

    torch.manual_seed(0)
    numbers = torch.randint(-8, 8, (96, 64), dtype=torch.int8)
    scale, least = torch.rand(2, 96) + 0.1, torch.randn(2, 96)
    pairs = (numbers[:, 1::2] << 4) | (numbers[:, ::2] & 15)
    dense = numbers * scale.t().repeat_interleave(32, 1) + least.t().repeat_interleave(32, 1)
    kwargs = QuantizeTensorToFloat8Kwargs(granularity=PerRow())
    second = Float8Tensor.from_hp(torch.randn(40, 96), granularity=PerRow(), act_quant_kwargs=kwargs)
    state = {"0.weight": Int4Tensor(pairs, scale, least, [1, 32], torch.Size((96, 64))), "0.bias": BIAS.clone()}
    tools.save_torchao(state | {"2.weight": second}, tmp_path / "w")
    hidden = (x() @ dense.t() + BIAS).relu()
    at = hidden.abs().amax(1, keepdim=True) / 448
    want = ((hidden / at).to(torch.float8_e4m3fn).float() * at) @ second.dequantize().t()
    near(modules(tmp_path / "w")(x()), want, 1e-4)


def test_torchao_as_transformers_writes_it_in_shards(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    from torchao.quantization import Int8WeightOnlyConfig

    tools.llama().save_pretrained(tmp_path / "plain")
    auto = transformers.AutoModelForCausalLM
    asked = transformers.TorchAoConfig(Int8WeightOnlyConfig())
    auto.from_pretrained(tmp_path / "plain", quantization_config=asked).save_pretrained(
        tmp_path / "w", max_shard_size="100KB"
    )
    assert (tmp_path / "w" / "model.safetensors.index.json").is_file()
    ids = torch.randint(64, (2, 7))
    near(llama(tmp_path / "w")(ids).logits, auto.from_pretrained(tmp_path / "w")(ids).logits.detach())

"""Linear layers over whole numbers: what is replaced, how far it moves the outputs, and what is refused."""

import json
import re
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from cases import recipe

import aotair
from aotair.builder import build_with_summary
from aotair.errors import ModelError, RecipeError
from aotair.model.load import load_model
from aotair.model.quantize import quantize
from aotair.model.quantized_layers import Int8Linear, WeightOnlyLinear
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.report.progress import summary_table
from aotair.summary import Listener

SCHEMES = ("int8_dynamic", "int8_static", "int8_weight_only", "int4_weight_only")
WEIGHTS_ALONE = SCHEMES[2:]


def block(scheme: str, device: str = "npu", dtype: str = "float16", **parts) -> dict:
    """A recipe for `QuantBlock`; what `parts` say of `quantize` is added."""
    row = {"shape": ["n", 64], "dtype": dtype}
    asked = {"linear": scheme} | ({"group_size": 32} if scheme == "int4_weight_only" else {})
    return recipe(
        "QuantBlock",
        {"x": row, "residual": row},
        {"n": [2, 4]},
        kwargs={"width": 64},
        target={"device": device},
        quantize=asked | parts.pop("quantize", {}),
        dtype=dtype,
        verify={"atol": 2e-2, "rtol": 2e-2},
        **parts,
    )


def done(data: dict):
    """The model of a recipe, quantised, and what `quantize` says of it."""
    job = job_of(parse_recipe(data))
    model = load_model(job)
    return model, quantize(model, job)


def of(model: torch.nn.Module, scheme: str = "int8_dynamic", width: int = 64, device: str = "cpu", **asked):
    """The same for a model of one `input`, (4, width) float32, or float16 on NPUs."""
    dtype = "float16" if device == "npu" else "float32"
    data = {
        "name": "m",
        "model": {"factory": "torch.nn:Identity", "dtype": dtype},
        "inputs": {"input": {"shape": [4, width], "dtype": dtype}},
        "quantize": {"linear": scheme} | asked,
        "target": {"device": device},
    }
    job = job_of(parse_recipe(data), given=model)
    loaded = load_model(job)
    return loaded, quantize(loaded, job)


# ---- what is replaced ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_build_reports_what_it_did(tmp_path, scheme):
    summary = build_with_summary(block(scheme), tmp_path / "x.aotair", Listener())
    made = summary.quantised
    assert (made.scheme, made.linears, made.source) == (scheme, 3, "random inputs"), "and not lm_head"
    assert set(made.layers) == {"first", "second", "third"}
    assert 0 < made.relative_error < (0.2 if "int4" in scheme else 0.05) and made.max_abs_error > 0
    assert 1 > made.cosine > 0.98
    errors = list(made.layers.values())
    assert errors == sorted(errors, reverse=True) and all(error > 1e-4 for error in errors)
    assert json.loads(json.dumps(summary.as_dict()))["quantised"]["layers"] == made.layers
    page = (tmp_path / "x.aotair" / "report.html").read_text()
    assert all(f"<td>{name}</td><td>{error:.2e}</td>" in page for name, error in made.layers.items())


def test_the_table_names_the_worst_layers_and_says_where_all_are(tmp_path):
    summary = build_with_summary(block("int8_dynamic"), tmp_path / "x.aotair", Listener())
    text = summary_table(summary)
    assert [line.split()[2] for line in text.splitlines() if "worst layers" in line] == list(summary.quantised.layers)
    assert "further layers" not in text
    many = {f"layers.{number}": 1 / (1 + number) for number in range(7)}
    text = summary_table(replace(summary, quantised=replace(summary.quantised, layers=many)))
    assert "layers.4" in text and "layers.5" not in text
    assert re.search("further layers +2, in report.html", text)


def test_norms_are_fused_with_the_quantisation_that_they_feed(tmp_path):
    summary = build_with_summary(block("int8_dynamic"), tmp_path / "x.aotair", Listener())
    assert summary.rewrites["lift_rms_norm"] == 2 and summary.rewrites["lift_add_rms_norm"] == 1
    assert summary.rewrites["add_rms_norm_dynamic_quant"] == 1, "the norm that feeds quantised layers only"
    assert summary.misses["add_rms_norm_dynamic_quant"] >= 1


def test_skipped_layers_stay():
    model, made = done(block("int8_dynamic", quantize={"skip": ["first", "lm_head"]}))
    assert made.linears == 2
    assert isinstance(model.first, torch.nn.Linear) and isinstance(model.second, Int8Linear)
    model, made = done(block("int8_weight_only", quantize={"skip": []}))
    assert made.linears == 4 and isinstance(model.lm_head, WeightOnlyLinear)


def test_schemes_by_layer_and_the_first_that_fits_counts():
    by_layer = {"first": "int8_dynamic", "lm_head": "int8_weight_only", "*": "int4_weight_only"}
    model, made = done(block("int8_dynamic", quantize={"linear": by_layer, "group_size": 32}))
    kinds = {name: getattr(model, name) for name in ("first", "second", "third", "lm_head")}
    assert isinstance(kinds["first"], Int8Linear) and made.linears == 4, "and lm_head, which a scheme means"
    bits = {name: (one._bits, one._group) for name, one in kinds.items() if isinstance(one, WeightOnlyLinear)}
    assert bits == {"second": (4, 32), "third": (4, 32), "lm_head": (8, None)}
    assert made.scheme == "int8_dynamic and int8_weight_only and int4_weight_only"
    model, made = done(block("int8_dynamic", quantize={"linear": {"s*": "int8_dynamic"}}))
    assert made.linears == 1 and isinstance(model.first, torch.nn.Linear)
    model, made = done(block("int8_dynamic", quantize={"linear": by_layer, "group_size": 32, "skip": ["second"]}))
    assert made.linears == 3 and isinstance(model.second, torch.nn.Linear)


def test_groups_are_those_of_weights_alone_and_of_int4_where_both_are_asked():
    by_layer = {"first": "int8_dynamic", "*": "int8_weight_only"}
    model, _ = done(block("int8_dynamic", quantize={"linear": by_layer, "group_size": 32}))
    assert isinstance(model.first, Int8Linear) and (model.second._bits, model.second._group) == (8, 32)


def test_a_static_scale_is_that_of_the_layers_that_have_one():
    by_layer = {"first": "int8_static", "*": "int8_dynamic"}
    model, _ = done(block("int8_dynamic", quantize={"linear": by_layer}))
    assert model.first.input_scale is not None and model.second.input_scale is None


def test_a_layer_of_two_names_is_replaced_under_both():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Linear(8, 8)
            self.other = self.one

        def forward(self, input):
            return self.one(input) + self.other(input)

    model, made = of(Shared(), width=8)
    assert made.linears == 1 and isinstance(model.one, Int8Linear) and model.one is model.other
    with pytest.raises(ModelError, match="no linear layer fits"):
        of(Shared(), width=8, skip=["other"])


def test_tied_weights_stay_tied(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.out = torch.nn.Embedding(24, 16), torch.nn.Linear(16, 24, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, ids):
            return self.out(self.embedding(ids))

    one, two = Tied().requires_grad_(False), Tied().requires_grad_(False)
    parts = {"inputs": {"ids": {"shape": [5], "dtype": "int64", "range": [0, 24]}}}
    parts |= {"quantize": {"linear": "int8_dynamic", "skip": []}}
    file, ids = tmp_path / "two.safetensors", torch.arange(5)
    safetensors.torch.save_file({"embedding.weight": two.embedding.weight}, file)
    model = aotair.load(aotair.build(model=one, out=tmp_path / "one.aotair", **parts), enable_output_clone=True)
    first = model(ids)
    model.load_weights(file)
    fresh = aotair.load(aotair.build(model=two, out=tmp_path / "two.aotair", **parts))
    assert torch.equal(model(ids), fresh(ids)) and not torch.equal(model(ids), first)


def test_a_models_state_is_as_it_was():
    parsed = job_of(parse_recipe(block("int8_static")))
    model = load_model(parsed)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    quantize(model, parsed)
    assert before and all(torch.equal(before[name], dict(model.named_buffers())[name]) for name in before)
    assert not any(hooked._forward_hooks for hooked in model.modules())


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "scheme"), [("cuda", scheme) for scheme in WEIGHTS_ALONE])
def test_what_a_target_has_no_kernel_for_is_refused_with_what_it_has(device, scheme):
    said = rf"{device} has no kernel for {scheme}; it has int8_dynamic, int8_static"
    with pytest.raises(RecipeError, match=said):
        aotair.build(block(scheme, device), "nowhere.aotair")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"linear": "int2"}, "(?s)quantize.linear.*int8_dynamic.*int4_weight_only"),
        ({"linear": "fp8_weight_only"}, r"no scheme of float8 \(fp8_weight_only\): Atlas A2 and A3 have none"),
        ({"linear": {"*": "float8_dynamic"}}, r"\(float8_dynamic\): .*take a scheme of int8"),
        ({"kv_cache": "FP8"}, r"no scheme of float8 \(FP8\)"),
        ({"linear": "int8_dynamic", "group_size": 32}, "group_size is for int8_weight_only and int4_weight_only"),
        ({"linear": "int4_weight_only", "group_size": 0}, "quantize.group_size"),
        ({"linear": {}}, "say what to quantise"),
        ({"linear": {"*": "int3"}}, "quantize.linear"),
        ({"linear": {"a": "int8_dynamic", "b": "int8_static"}, "group_size": 32}, "not int8_dynamic, int8_static"),
    ],
)
def test_what_does_not_go_together_is_refused(asked, said):
    with pytest.raises(RecipeError, match=said):
        aotair.build(block("int8_dynamic") | {"quantize": asked}, "nowhere.aotair")


def test_dtypes_that_a_target_has_no_kernel_for():
    wide = block("int8_dynamic", dtype="float32")
    with pytest.raises(ModelError, match="float16 or bfloat16"):
        done(wide)
    with pytest.raises(ModelError, match=r"(?s)no linear layer fits.*skip: \['\*'\]"):
        done(block("int8_dynamic", quantize={"skip": ["*"]}))
    with pytest.raises(ModelError, match=r"(?s)no linear layer fits.*linear: \['other\*'\], skip: \[\]"):
        done(block("int8_dynamic", quantize={"linear": {"other*": "int8_dynamic"}}))
    with pytest.raises(ModelError, match="float16 or bfloat16 or float32"):
        done(block("int8_dynamic", device="cpu", dtype="float64"))


@pytest.mark.parametrize(
    ("asked", "idle"),
    [
        ({"linear": {"*": "int8_dynamic", "f*": "int8_static"}}, "linear: f*"),
        ({"linear": {"other*": "int8_dynamic", "*": "int8_dynamic"}}, "linear: other*"),
        ({"linear": "int8_dynamic", "skip": ["*lm_haed"]}, "skip: *lm_haed"),
    ],
)
def test_patterns_that_mean_no_layer_are_refused(asked, idle):
    with pytest.raises(ModelError, match="patterns that mean no layer") as caught:
        done(block("int8_dynamic") | {"quantize": asked})
    assert caught.value.got == idle


@pytest.mark.parametrize(
    ("out", "width", "scheme", "asked", "said"),
    [
        (8, 96, "int4_weight_only", {}, r"\(96 inputs, no multiple of group_size 128\)"),
        (8, 96, "int8_weight_only", {"group_size": 64}, r"0 \(96 inputs, no multiple of group_size 64\)"),
        (8, 96, "int8_weight_only", {"group_size": 48}, "groups of 48, not of a multiple of 32"),
        (12, 64, "int4_weight_only", {"group_size": 32}, "12 rows of int4, not a multiple of 8"),
        (8, 65536, "int8_weight_only", {}, "more than 65535 rows or columns"),
    ],
)
def test_layers_that_the_kernel_does_not_take_are_named(out, width, scheme, asked, said):
    with pytest.raises(ModelError, match=said):
        of(torch.nn.Sequential(torch.nn.Linear(width, out)), scheme, width, "npu", **asked)


# ---- calibration -----------------------------------------------------------------------------------------------------


class Two(torch.nn.Module):
    """`idle` is called for inputs above 5 alone."""

    def __init__(self):
        super().__init__()
        self.busy, self.idle = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, input):
        return self.busy(input) if input.abs().max() <= 5 else self.idle(input)


def calls():
    """Of the recipe's input, for `quantize.calibration`."""
    generator = torch.Generator().manual_seed(1)
    for size in (1.0, 2.0, 0.5):
        yield {"input": torch.randn(4, 8, generator=generator).clamp(-2, 2) * size}


def wrong_calls():
    return [{"y": torch.ones(4, 8)}]


def no_calls():
    return []


def whole_calls():
    return [{"input": torch.ones(4, 8, dtype=torch.int64)}]


def listed_calls():
    return [{"input": [[1.0] * 8] * 4}]


def narrow_calls():
    return [{"input": torch.ones(4, 7)}]


def flat_calls():
    return [{"input": torch.ones(8)}]


def test_static_scales_are_the_largest_over_127(tmp_path):
    largest = max(one["input"].abs().max().item() for one in calls())
    file = tmp_path / "calls.safetensors"
    safetensors.torch.save_file({f"{number}.input": one["input"] for number, one in enumerate(calls())}, file)
    for calibration in (str(file), f"{__file__}:calls"):
        model, made = of(torch.nn.Sequential(torch.nn.Linear(8, 8)), "int8_static", 8, calibration=calibration)
        assert model[0].input_scale.tolist() == [torch.tensor(largest / 127).item()]
        assert made.source == f"3 of {calibration}"
        assert "0.input_scale" not in model.state_dict(), "no checkpoint has it"


def test_a_layer_that_no_call_reaches_has_no_static_scale():
    with pytest.raises(ModelError, match=r"(?s)int8_static needs calls of every layer.*random inputs.*idle"):
        of(Two(), "int8_static", 8)
    _, made = of(Two(), "int8_dynamic", 8)
    assert made.linears == 2 and list(made.layers) == ["busy"], "the error of the other is not known"
    model, _ = of(Two(), "int8_static", 8, skip=["idle"])
    assert isinstance(model.busy, Int8Linear)


@pytest.mark.parametrize(
    ("calibration", "error", "said"),
    [
        ("nowhere.safetensors", RecipeError, "quantize.calibration: not readable"),
        ("nowhere:calls", ModelError, "quantize.calibration: cannot import"),
        (f"{__file__}:wrong_calls", RecipeError, "(?s)gives other inputs than the recipe's, as number 0.*got: y"),
        (f"{__file__}:no_calls", RecipeError, "(?s)no_calls gives no inputs.*got: none"),
        (f"{__file__}:whole_calls", RecipeError, r"(?s)number 0 another input than the recipe's.*got: torch.int64 \[4"),
        (f"{__file__}:listed_calls", RecipeError, "(?s)number 0 another input than the recipe's.*got: list"),
        (f"{__file__}:narrow_calls", ModelError, r"(?s)the model fails on 1 of .*RuntimeError.*got: input \[4, 7\]"),
        (f"{__file__}:flat_calls", RecipeError, "(?s)number 0 another input than the recipe's.*2 dimensions"),
    ],
)
def test_calibrations_that_are_none(calibration, error, said):
    with pytest.raises(error, match=said):
        of(torch.nn.Sequential(torch.nn.Linear(8, 8)), "int8_static", 8, calibration=calibration)


def test_a_scale_of_zeros_is_one():
    model, _ = of(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 8)), "int8_static", 8)
    layer = model[1]
    assert Int8Linear(layer, layer._target, 0.0).input_scale.tolist() == [1.0]


# ---- the reported errors ---------------------------------------------------------------------------------------------


def test_reported_errors_are_those_of_layers_and_outputs():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).requires_grad_(False)
    changed, made = of(model, "int8_dynamic", 8, calibration=f"{__file__}:calls")
    away, whole, outputs = torch.zeros(2).double(), torch.zeros(2).double(), []
    for one in calls():
        hidden = model[1](model[0](one["input"]))
        for number, (layer, x) in enumerate(((0, one["input"]), (2, hidden))):
            want = model[layer](x).double()
            away[number] += (changed[layer](x).double() - want).square().sum()
            whole[number] += want.square().sum()
        outputs.append((model(one["input"]).double(), changed(one["input"]).double()))
    relative = (away / whole).sqrt()
    assert made.layers == pytest.approx({"0": relative[0].item(), "2": relative[1].item()})
    assert made.max_abs_error == pytest.approx(max((a - b).abs().max().item() for a, b in outputs))
    assert made.relative_error == pytest.approx(max(((a - b).norm() / a.norm()).item() for a, b in outputs))
    cosines = [torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0).item() for a, b in outputs]
    assert made.cosine == pytest.approx(min(cosines))


# ---- layers that do more than their class says -----------------------------------------------------------------------


def _hooked(kind: str) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    if kind == "before":  # as weight_norm has one
        model[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    elif kind == "after":
        model[0].register_forward_hook(lambda module, given, answer: answer * 2)
    else:
        forward = model[0].forward
        model[0].forward = lambda x: forward(x) * 2
    return model


@pytest.mark.parametrize("kind", ["before", "after", "forward"])
def test_a_layer_with_hooks_or_a_forward_of_its_own_is_refused_and_may_be_skipped(kind: str, tmp_path):
    x = {"input": {"shape": [2, 8], "dtype": "float32"}}
    part = {"linear": "int8_dynamic"}
    with pytest.raises(ModelError, match=r"(?s)do more than their class says.*0 \(it"):
        aotair.build(model=_hooked(kind), out=tmp_path / "m.aotair", inputs=x, quantize=part)
    aotair.build(model=_hooked(kind), out=tmp_path / "m.aotair", inputs=x, quantize=part | {"skip": ["0"]})


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (torch.nn.Linear(8, 0), "a weight without elements"),
        (torch.nn.Linear(140_000, 8), "sums of more than 131071 products of int8 may not fit int32"),
    ],
)
def test_layers_that_int8_cannot_hold_are_refused_by_name(layer, said, tmp_path):
    x = {"input": {"shape": [1, layer.in_features], "dtype": "float32"}}
    model = torch.nn.Sequential(layer)
    with pytest.raises(ModelError, match=said):
        aotair.build(model=model, out=tmp_path / "m.aotair", inputs=x, quantize={"linear": "int8_dynamic"})


def test_a_model_that_is_a_layer_is_refused_with_the_reason(tmp_path):
    x = {"input": {"shape": [1, 8], "dtype": "float32"}}
    with pytest.raises(ModelError, match="the model itself is the layer"):
        aotair.build(
            model=torch.nn.Linear(8, 8), out=tmp_path / "m.aotair", inputs=x, quantize={"linear": "int8_dynamic"}
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_calibration_that_is_not_finite_is_refused(bad: float, tmp_path):
    safetensors.torch.save_file({"input": torch.full((2, 8), bad)}, tmp_path / "c.safetensors")
    x = {"input": {"shape": [2, 8], "dtype": "float32"}}
    part = {"linear": "int8_static", "calibration": str(tmp_path / "c.safetensors")}
    with pytest.raises(ModelError, match=r"(?s)calibration.*NaN or infinities"):
        aotair.build(
            model=torch.nn.Sequential(torch.nn.Linear(8, 8)), out=tmp_path / "m.aotair", inputs=x, quantize=part
        )


class Lopsided(torch.nn.Module):
    """A layer whose first input is far larger than the others, and read by nobody."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 32, bias=False)
        self.layer.weight.data[:, 0] = 0

    def forward(self, input):
        return self.layer(torch.cat([input[:, :1] + 1e4, input[:, 1:]], 1))


@pytest.mark.parametrize(
    ("model", "warned"), [(Lopsided(), True), (torch.nn.Sequential(torch.nn.Linear(64, 8)), False)]
)
def test_a_model_that_answers_otherwise_is_warned_of(caplog, model, warned):
    _, found = of(model)
    assert (found.cosine < 0.9) is warned
    assert ("quantize: the answers are other ones" in caplog.text) is warned
    assert ("what moves most is layer:" in caplog.text) is warned

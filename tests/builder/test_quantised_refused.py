"""Quantised checkpoints that are not served, or spoiled: one error each, with file, field and what is served."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import quantised_layouts as layouts
import quantised_tools as tools
import torch
from quantised_cases import AWQ, COMPRESSED, GPTQ, STEPS, TORCHAO, change, compressed, modules, packed, recipe, slim

import aotair
from aotair.errors import AotairError, ModelError
from aotair_runtime.errors import WeightsError


def weights_of(config: dict) -> dict:
    return config["config_groups"]["group_0"]["weights"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each format, to be spoiled."""
    folder = tmp_path_factory.mktemp("made")
    compressed(folder / "int4", COMPRESSED["w4a16, zero points"])
    compressed(folder / "int8", COMPRESSED["w8a8, static, zero points"])
    packed(layouts.gptq, folder / "gptq", GPTQ)
    packed(layouts.awq, folder / "awq", AWQ)
    slim(folder / "slim", "W8A8")
    slim(folder / "slim4", "W4A8_DYNAMIC")
    tools.by_torchao(tools.stack(0), folder / "torchao", TORCHAO["int8 dynamic"]())
    return folder


def copied(made: Path, name: str, tmp_path: Path) -> Path:
    target = tmp_path / name
    target.mkdir()
    for file in (made / name).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


HUGE = 10**30
CONFIGS = [
    ("int4", lambda c: c.update(quant_method="bitsandbytes"), r"quant_method.*compressed-tensors.*gptq.*bitsandbytes"),
    ("int4", lambda c: c.pop("quant_method"), r"quant_method.*nothing"),
    ("int4", lambda c: c.update(format="nvfp4-pack-quantized"), r"format.*pack-quantized.*nvfp4"),
    ("int4", lambda c: c.update(sparsity_config={"format": "sparse-24-bitmask"}), r"sparsity_config\.format.*dense"),
    ("int4", lambda c: c.update(transform_config={"config_groups": {"a": 1}}), r"transform_config"),
    ("int4", lambda c: c.update(config_groups={}), r"config_groups"),
    ("int4", lambda c: c.update(config_groups=[1]), r"config_groups"),
    ("int4", lambda c: c.update(quantization_status="calibration"), r"quantization_status.*compressed"),
    ("int4", lambda c: c["config_groups"].update(group_0=7), r"config_groups\.group_0"),
    ("int4", lambda c: weights_of(c).update(strategy="tensor_group"), r"weights\.strategy.*group.*tensor_group"),
    ("int4", lambda c: weights_of(c).update(num_bits=3), r"weights\.num_bits.*4 or 8.*3"),
    ("int4", lambda c: weights_of(c).update(num_bits=HUGE), r"weights\.num_bits"),
    ("int4", lambda c: weights_of(c).update(num_bits=True), r"weights\.num_bits"),
    ("int4", lambda c: weights_of(c).update(group_size=0), r"weights\.group_size"),
    ("int4", lambda c: weights_of(c).update(group_size=HUGE), r"weights\.group_size"),
    ("int4", lambda c: weights_of(c).update(group_size=48), r"does not go into groups of 48"),
    ("int4", lambda c: weights_of(c).update(group_size=16), r"weight_scale does not fit"),
    ("int4", lambda c: weights_of(c).update(num_bits=8), r"does not fit"),
    ("int4", lambda c: weights_of(c).update(symmetric="yes"), r"weights\.symmetric"),
    ("int4", lambda c: weights_of(c).update(actorder="odd"), r"weights\.actorder"),
    ("int4", lambda c: weights_of(c).update(dynamic=True), r"weights\.dynamic"),
    ("int4", lambda c: c.update(ignore=["0"]), r"0: the configuration ignores it"),
    ("int4", lambda c: c.update(ignore=[1]), r"ignore"),
    ("int4", lambda c: c.update(ignore=["re:(a+)+$"]), r"regular expressions with at most"),
    ("int4", lambda c: c.update(ignore=["re:.*.*.*.*x"]), r"regular expressions with at most"),
    ("int4", lambda c: c.update(ignore=["re:["]), r"regular expressions"),
    ("int4", lambda c: c["config_groups"]["group_0"].update(targets=["x"]), r"no group of the configuration means it"),
    ("int8", lambda c: c["config_groups"]["group_0"]["input_activations"].update(dynamic=True), r"strategy.*token"),
    ("int8", lambda c: c["config_groups"]["group_0"].update(output_activations={"num_bits": 8}), r"output_activations"),
    ("gptq", lambda c: c.update(bits=3), r"bits.*4 or 8"),
    ("gptq", lambda c: c.update(bits=8), r"does not fit"),
    ("gptq", lambda c: c.update(group_size=0), r"groups of 0"),
    ("gptq", lambda c: c.update(group_size=-HUGE), r"group_size"),
    ("gptq", lambda c: c.update(checkpoint_format="marlin"), r"checkpoint_format.*gptq.*marlin"),
    ("gptq", lambda c: c.update(dynamic={"-:0": {}}), r"0: the configuration leaves it out"),
    ("gptq", lambda c: c.update(dynamic={"+:(a*)*": {}}), r"dynamic.*"),
    ("awq", lambda c: c.update(version="gemv"), r"version.*gemm.*gemv"),
    ("awq", lambda c: c.update(bits=8), r"bits"),
    ("awq", lambda c: c.update(zero_point=False), r"zero_point"),
    ("awq", lambda c: c.update(group_size=7), r"groups of 7"),
]


@pytest.mark.parametrize("name, edit, says", CONFIGS, ids=lambda part: part if isinstance(part, str) else "")
def test_what_a_configuration_may_not_say(name: str, edit: Callable, says: str, made: Path, tmp_path: Path):
    folder = copied(made, name, tmp_path)
    change(folder, edit)
    with pytest.raises(ModelError) as refused:
        modules(folder)
    text = str(refused.value)
    assert re.search(says, text, re.DOTALL) and str(folder) in text


SPOILED = [
    ("int4", "0.weight_packed", lambda t: t[:-1], "weight_packed does not fit"),
    ("int4", "0.weight_packed", lambda t: t.float(), "weight_packed does not fit"),
    ("int4", "0.weight_scale", lambda t: None, "lacks its weight_scale"),
    ("int4", "0.weight_scale", lambda t: t[:, :0], "weight_scale does not fit"),
    ("int4", "0.weight_scale", lambda t: t * torch.nan, "weight_scale holds NaN"),
    ("int4", "0.weight_zero_point", lambda t: None, "lacks its weight_zero_point"),
    ("int4", "0.weight_shape", lambda t: t * 2**40, "weight_shape says"),
    ("int4", "1.weight_packed", lambda t: torch.ones(1, 1), r"no linear layers.*1 \(ReLU\)"),
    ("int4", "7.weight_packed", lambda t: torch.ones(1, 1), r"7 \(not there\)"),
    ("int8", "0.input_scale", lambda t: None, "lacks its input_scale"),
    ("int8", "0.input_scale", lambda t: torch.ones(3), "input_scale does not fit"),
    ("int8", "0.weight", lambda t: t[:, :-1], "weight does not fit"),
    ("gptq", "0.g_idx", lambda t: t + 1, "g_idx names groups from 1 to 2"),
    ("gptq", "0.g_idx", lambda t: t - 1, "g_idx names groups from -1"),
    ("gptq", "0.g_idx", lambda t: torch.full_like(t, 2**31 - 1), "g_idx names groups from 2147483647"),
    ("gptq", "0.g_idx", lambda t: t * 0, "more inputs into one group"),
    ("gptq", "0.g_idx", lambda t: t.float(), "g_idx does not fit"),
    ("gptq", "0.scales", lambda t: t[:0], "scales does not fit"),
    ("gptq", "0.qweight", lambda t: t.t().contiguous(), "qweight does not fit"),
    ("gptq", "0.extra", lambda t: torch.ones(1), "names do not match"),
    ("awq", "0.qzeros", lambda t: None, "lacks its qzeros"),
    ("slim", "0.deq_scale", lambda t: t.double(), "deq_scale does not fit"),
    ("slim", "0.quant_bias", lambda t: None, "lacks its quant_bias"),
    ("slim4", "0.scale_bias", lambda t: torch.ones(()), "scale_bias does not fit"),
    ("slim4", "0.weight", lambda t: t[:-1], "weight does not fit"),
    ("torchao", "0._weight_zero_point", lambda t: t + 1, "_weight_zero_point is not 0"),
    ("torchao", "0._weight_qdata", lambda t: t[:1], "_weight_qdata does not fit"),
]


@pytest.mark.parametrize("name, tensor, edit, says", SPOILED, ids=lambda part: part if isinstance(part, str) else "")
def test_tensors_that_do_not_fit(name: str, tensor: str, edit: Callable, says: str, made: Path, tmp_path: Path):
    folder = copied(made, name, tmp_path)
    (file,) = folder.glob("*.safetensors")
    stored, headers = tools.safetensors.torch.load_file(file), tools.headers_of(file)
    value = edit(stored.get(tensor))
    stored = {key: one for key, one in stored.items() if key != tensor} | (
        {} if value is None else {tensor: value.contiguous()}
    )
    tools.safetensors.torch.save_file(stored, file, metadata=headers)
    with pytest.raises(ModelError) as refused:
        modules(folder)
    assert re.search(says, str(refused.value), re.DOTALL), refused.value


HEADERS = [
    ("{", "cannot be read as JSON"),
    ("[]", "says nothing of 0.weight"),
    ('{"_type": "NF4Tensor"}', r"_type.*Int8Tensor.*NF4Tensor"),
    ('{"_type": "Int8Tensor"}', r"_data"),
    ('{"_type": "Int8Tensor", "_data": {"block_size": [1, 0]}}', r"block_size"),
    ('{"_type": "Int8Tensor", "_data": {"block_size": [1, 1000000000000000000000]}}', r""),
    ('{"_type": "Int8Tensor", "_data": {"block_size": [3, 64]}}', r"block_size"),
    ('{"_type": "Int4Tensor", "_data": {"block_size": [1, 32]}}', r"lacks|does not fit"),
]


@pytest.mark.parametrize("header, says", HEADERS)
def test_headers_of_torchao_that_mean_nothing(header: str, says: str, made: Path, tmp_path: Path):
    folder = copied(made, "torchao", tmp_path)
    file = folder / "model.safetensors"
    stored, headers = tools.safetensors.torch.load_file(file), tools.headers_of(file)
    tools.safetensors.torch.save_file(stored, file, metadata=headers | {"0.weight": header})
    if says:
        with pytest.raises(ModelError, match=re.compile(says, re.DOTALL)):
            modules(folder)
    else:
        modules(folder)  # as large a block as there may be


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"quantization_config": 3}', '{"quantization_config": NaN}']
)
def test_a_configuration_that_is_none(text: str, made: Path, tmp_path: Path):
    folder = copied(made, "int4", tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(AotairError, match=r"config\.json"):
        modules(folder)


def test_quantised_tensors_that_nothing_describes_stay_an_error(made: Path, tmp_path: Path):
    for name, says in (("int4", "names do not match"), ("int8", "tensors do not fit")):
        folder = copied(made, name, tmp_path)
        (folder / "config.json").write_text("{}")
        with pytest.raises(ModelError, match=says):
            modules(folder)


def test_an_unknown_kind_of_msmodelslim(made: Path, tmp_path: Path):
    folder = copied(made, "slim", tmp_path)
    file = folder / "quant_model_description.json"
    file.write_text(file.read_text().replace('"0.weight": "W8A8"', '"0.weight": "W4A4_MXFP4"'))
    with pytest.raises(ModelError, match=re.compile(r"0\.weight.*W8A8_DYNAMIC.*W4A4_MXFP4", re.DOTALL)):
        modules(folder)


def test_an_npu_has_no_float8_activations(tmp_path: Path):
    compressed(tmp_path / "w", COMPRESSED["float8"])
    with pytest.raises(ModelError, match="an NPU has no float8"):
        modules(tmp_path / "w", "npu", "float16")


def test_an_adapter_of_a_quantised_layer_is_refused(made: Path, tmp_path: Path):
    compressed(tmp_path / "float8", COMPRESSED["float8"])
    (tmp_path / "adapter").mkdir()
    factors = {"0.lora_A.weight": torch.randn(2, 64), "0.lora_B.weight": torch.randn(96, 2)}
    tools.safetensors.torch.save_file(factors, tmp_path / "adapter" / "adapter_model.safetensors")
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2})
    )
    said = (
        (tmp_path / "float8", "are no floating-point numbers"),
        (made / "int8", "are no floating-point numbers"),
        (made / "int4", "layers that the model does not have"),
    )
    for weights, says in said:
        model = aotair.load(aotair.build(recipe(weights, **STEPS), tmp_path / "x.aotair"))
        with pytest.raises(WeightsError, match=says):
            model.load_adapter(tmp_path / "adapter", base=weights)

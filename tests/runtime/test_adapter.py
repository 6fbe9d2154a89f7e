"""LoRA adapters on a loaded model: their numbers, what is refused before a byte is written, and the way back."""

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import RECIPES
from nodes import Node

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.errors import AotairError, ArgumentError, ClosedError, WeightsError
from aotair_runtime.weights.adapter import _is_of_another_layer

LAYERS = {"first": (3, 4), "second": (3, 4)}
ALPHA = 6


def original() -> torch.nn.Module:
    with torch.device("cpu"):
        return load_model(job_of(parse_recipe(RECIPES["derived"])))


def factors(seed: int = 0, rank: int = 2, layers: dict = LAYERS) -> dict[str, torch.Tensor]:
    generator, found = torch.Generator("cpu").manual_seed(seed), {}
    for name, (out, width) in layers.items():
        found[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, width, generator=generator, device="cpu")
        found[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank, generator=generator, device="cpu")
    return found


def adapter(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(factors() if tensors is None else tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": ALPHA, "bias": "none"} | config
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


def changed(tensors: dict[str, torch.Tensor], strength: float) -> torch.nn.Module:
    """The original with an adapter merged into its weights."""
    model = original()
    for name in LAYERS:
        a, b = (tensors[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
        with torch.no_grad():
            model.get_submodule(name).weight += strength * (b @ a)
    return model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    file = tmp_path / "base.safetensors"
    safetensors.torch.save_file(original().state_dict(), file)
    return file


@pytest.fixture
def model(node):
    with node.load("derived", enable_output_clone=True) as loaded:
        yield loaded


X = torch.linspace(-1, 1, 16, device="cpu").view(4, 4)


def texts(model) -> list[bytes]:
    return [tensor.cpu().numpy().tobytes() for tensor in model._resident.constants]


def answers_as(node: Node, model, wanted: torch.nn.Module) -> None:
    with torch.device("cpu"):
        want = wanted(X)
    torch.testing.assert_close(model(X.to(node.device)).cpu(), want, atol=1e-3, rtol=1e-3)


# ---- the numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "strength"),
    [
        ({}, ALPHA / 2),
        ({"use_rslora": True}, ALPHA / math.sqrt(2)),
        ({"lora_alpha": 1}, 0.5),
        (
            {"r": 2, "rank_pattern": {"fir.t": 9}, "target_modules": ["first", "second"], "exclude_modules": "x"},
            ALPHA / 2,
        ),
        ({"alpha_pattern": {"first": ALPHA, "second": ALPHA}, "lora_alpha": 1}, ALPHA / 2),
    ],
)
@pytest.mark.parametrize("scale", [1.0, -0.25])
def test_it_adds_the_product_at_the_same_addresses(node, model, base, tmp_path, config, strength, scale):
    before, addresses = texts(model), [tensor.data_ptr() for tensor in model._resident.constants]
    captures = [bucket.captures for bucket in model.stats().buckets]
    model.load_adapter(adapter(tmp_path / "a", **config), scale=scale, base=base)
    answers_as(node, model, changed(factors(), scale * strength))
    assert [tensor.data_ptr() for tensor in model._resident.constants] == addresses
    assert [bucket.captures for bucket in model.stats().buckets] == captures
    assert texts(model) != before
    model.unload_adapter()
    assert texts(model) == before
    answers_as(node, model, original())


def test_another_adapter_takes_the_place_of_the_first(node, model, base, tmp_path):
    before, only = texts(model), {name: t for name, t in factors(1).items() if ".second." in name}
    model.load_adapter(adapter(tmp_path / "a"), base=base)
    model.load_adapter(adapter(tmp_path / "b", factors(1)), base=base)
    answers_as(node, model, changed(factors(1), ALPHA / 2))
    model.load_adapter(adapter(tmp_path / "c", only), base=base)
    zeros = {name: t if ".second." in name else torch.zeros_like(t) for name, t in factors(1).items()}
    answers_as(node, model, changed(zeros, ALPHA / 2))
    model.unload_adapter()
    model.unload_adapter()
    assert texts(model) == before


def test_a_checkpoint_is_the_new_base(node, model, base, tmp_path):
    model.load_adapter(adapter(tmp_path / "a"), base=base)
    other = original()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.25)
    file = tmp_path / "other.safetensors"
    safetensors.torch.save_file(other.state_dict(), file)
    model.load_weights(file)
    answers_as(node, model, other)
    now = texts(model)
    model.unload_adapter()
    assert texts(model) == now, "there is none any more"
    with pytest.raises(WeightsError, match="the base checkpoint holds other weights than the model"):
        model.load_adapter(tmp_path / "a", base=base)
    assert texts(model) == now
    model.load_adapter(tmp_path / "a", base=file)
    model.unload_adapter()
    assert texts(model) == now


def test_weights_that_are_stored_as_they_are_need_no_base(node, tmp_path):
    with node.load("linear", enable_output_clone=True) as model:
        before = model(X.to(node.device)).clone()
        tensors = factors(layers={"linear": (3, 4)})
        model.load_adapter(adapter(tmp_path / "a", tensors))
        a, b = tensors.values()
        want = before.cpu() + X @ (ALPHA / 2 * (b @ a)).t()
        torch.testing.assert_close(model(X.to(node.device)).cpu(), want, atol=1e-3, rtol=1e-3)
        model.unload_adapter()
        assert torch.equal(model(X.to(node.device)), before)


def test_what_peft_itself_computes(tmp_path):
    """A Llama with the adapter that PEFT made and saved."""
    import copy

    peft = pytest.importorskip("peft", reason="PEFT is not installed here: it comes with the extra dev")
    import transformers

    torch.manual_seed(0)
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 32)
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    options = {"target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": False}
    config = peft.LoraConfig(r=4, lora_alpha=12, alpha_pattern={"q_proj": 3}, rank_pattern={"v_proj": 2}, **options)
    theirs = peft.get_peft_model(copy.deepcopy(llama), config).eval()
    theirs.save_pretrained(tmp_path / "lora")

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.lm_head = llama.model, llama.lm_head

        def forward(self, ids):
            return self.lm_head(self.model(input_ids=ids, use_cache=False).last_hidden_state)

    ids = torch.arange(6).view(1, 6)
    inputs = {"ids": {"shape": [1, 6], "dtype": "int64", "range": [0, 50]}}
    path = aotair.build(model=Logits(), out=tmp_path / "m.aotair", inputs=inputs, buckets=[{}])
    with aotair.load(path, enable_output_clone=True) as model:
        plain = model(ids)
        model.load_adapter(tmp_path / "lora")
        torch.testing.assert_close(model(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(plain, theirs(ids).logits, atol=1e-2)
        model.unload_adapter()
        assert torch.equal(model(ids), plain)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "said", "out"),
    [
        ("model.layers.1.q", {"layers_to_transform": [1]}, False),
        ("model.layers.1.q", {"layers_to_transform": 0}, True),
        ("layers.1.q", {"layers_to_transform": [1]}, True),  # nothing before the name: as PEFT has it
        ("model.layers.1.experts.0.w", {"layers_to_transform": [0]}, False),
        ("model.layers.1.experts.0.w", {"layers_to_transform": [1], "layers_pattern": "layers"}, False),
        ("model.layers.1.experts.0.w", {"layers_to_transform": [0], "layers_pattern": ["layers", "h"]}, True),
        ("model.layers.1.q", {"layers_to_transform": [1], "layers_pattern": "blocks"}, True),
        ("model.layers.1.q", {"layers_to_transform": [2], "layers_pattern": "lay.*"}, False),  # not tried
        ("model.layers.1.q", {"layers_to_transform": []}, False),
        ("model.layers.1.q", {"layers_pattern": "blocks"}, False),
    ],
)
def test_layers_by_number_are_found_as_peft_finds_them(module: str, said: dict, out: bool):
    assert _is_of_another_layer(said, module) is out


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in factors().items() if name not in key}


@pytest.mark.parametrize(
    ("tensors", "config", "says"),
    [
        (None, {"use_dora": True}, "adapters with use_dora are not served"),
        (None, {"bias": "all"}, "adapters with bias are not served"),
        (None, {"modules_to_save": ["first"]}, "adapters with modules_to_save"),
        (None, {"peft_type": "IA3"}, "adapters with peft_type"),
        (None, {"lora_alpha": "much"}, "lora_alpha is no number"),
        (None, {"lora_alpha": 10**400}, "lora_alpha is no number"),
        (None, {"alpha_pattern": {"^f": 1}}, "alpha_pattern of regular expressions"),
        (None, {"alpha_pattern": ["first"]}, "alpha_pattern of regular expressions"),
        (None, {"r": 3}, "(?s)another rank than its configuration says.*3.*2"),
        (None, {"r": 0}, "another rank"),
        (None, {"r": 2, "rank_pattern": {"first": 4}}, "(?s)of first have another rank.*4.*2"),
        (None, {"rank_pattern": [1]}, "rank_pattern is no mapping"),
        (None, {"target_modules": ["second"]}, "(?s)factors of first, which its configuration leaves out"),
        (None, {"exclude_modules": ["second"]}, "(?s)factors of second, which its configuration leaves out"),
        (None, {"alora_invocation_tokens": [1, 2]}, "adapters with alora_invocation_tokens"),
        (None, {"init_lora_weights": "pissa"}, "adapters with init_lora_weights"),
        (None, {"target_parameters": ["first.other"]}, "adapters with target_parameters"),
        (None, {"use_rslora": "false"}, "adapters with use_rslora"),
        (None, {"something_new": 1}, "adapters with something_new"),
        (factors(rank=0), {"use_rslora": True}, "do not fit its weight"),
        (factors() | {"first.lora_A.weight": torch.tensor(1.0)}, {}, "no LoRA adapter"),
        ({"first.lora_A.weight": torch.tensor(1.0), "first.lora_B.weight": torch.ones(3, 2)}, {}, "do not fit"),
        (None, {"lora_alpha": float("nan")}, "lora_alpha is no number"),
        (without("second.lora_B"), {}, "(?s)no LoRA adapter.*second"),
        (factors() | {"x.lora_embedding_A": torch.ones(1)}, {}, "(?s)no LoRA adapter.*lora_embedding_A"),
        ({}, {}, "no LoRA adapter"),
        (factors(layers={"third": (3, 4)}), {}, "(?s)layers that the model does not have.*third"),
        (factors(layers={"first": (3, 5)}), {}, r"(?s)of first do not fit its weight.*\[3, 4\].*\[3, 2\] and \[2, 5\]"),
        ({name: t.to(torch.int32) for name, t in factors().items()}, {}, "no floating-point numbers"),
        ({name: t * float("nan") for name, t in factors().items()}, {}, "NaN or infinities"),
        ({name: t.unsqueeze(0) for name, t in factors().items()}, {}, "do not fit"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(node, model, base, tmp_path, tensors, config, says):
    before = texts(model)
    with pytest.raises(WeightsError, match=says):
        model.load_adapter(adapter(tmp_path / "a", tensors, **config), base=base)
    assert texts(model) == before


def test_a_transposed_adapter(node, tmp_path, model, base):
    """Of layers that keep their weights (in, out)."""
    flipped = factors(layers={"first": (4, 3), "second": (4, 3)})
    model.load_adapter(adapter(tmp_path / "a", flipped, fan_in_fan_out=True), base=base)
    wanted = original()
    with torch.no_grad():
        for name in LAYERS:
            a, b = (flipped[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
            wanted.get_submodule(name).weight += ALPHA / 2 * (b @ a).t()
    answers_as(node, model, wanted)


def test_a_base_that_is_missing_or_lacks_weights(node, model, base, tmp_path):
    path, before = adapter(tmp_path / "a"), texts(model)
    with pytest.raises(WeightsError, match=r"(?s)only what is made of them.*base=PATH"):
        model.load_adapter(path)
    tensors = safetensors.torch.load_file(base)
    del tensors["second.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "less.safetensors")
    with pytest.raises(WeightsError, match=r"(?s)lacks weights.*second.weight"):
        model.load_adapter(path, base=tmp_path / "less.safetensors")
    assert texts(model) == before


def test_a_weight_that_layers_share(node, tmp_path):
    with node.load("tied") as model, pytest.raises(WeightsError, match=r"(?s)which others share.*b\.weight"):
        model.load_adapter(adapter(tmp_path / "a", factors(layers={"a": (4, 4)})))


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "nul"])
def test_a_configuration_that_is_none(node, model, base, tmp_path, text: str):
    path = adapter(tmp_path / "a")
    (path / "adapter_config.json").write_text(text)
    with pytest.raises(WeightsError, match="configuration"):
        model.load_adapter(path, base=base)
    (path / "adapter_config.json").unlink()
    with pytest.raises(WeightsError, match="configuration cannot be read"):
        model.load_adapter(path, base=base)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1"])
def test_a_scale_that_is_no_number(model, tmp_path, scale):
    with pytest.raises(ArgumentError, match="scale is no number"):
        model.load_adapter(adapter(tmp_path / "a"), scale=scale)


@pytest.mark.parametrize("given", [{"path": 5}, {"path": None}, {"path": "a", "base": 5}])
def test_a_path_that_is_none(model, given):
    with pytest.raises(ArgumentError, match="load_adapter takes paths"):
        model.load_adapter(**given)


def test_square_weights_beside_transposed_ones_do_not_say_how_they_lie(tmp_path):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.square, self.flat = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 6, bias=False)
            self.other = torch.nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            return self.square(x), self.flat(x)

    inputs = {"x": {"shape": [2, 4], "dtype": "float32"}}
    path = aotair.build(model=Both().eval(), out=tmp_path / "m.aotair", inputs=inputs, buckets=[{}])
    with aotair.load(path) as model:
        mixed = adapter(tmp_path / "a", factors(layers={"square": (4, 4), "flat": (4, 6)}))
        with pytest.raises(WeightsError, match=r"(?s)lie in both ways.*square\.weight"):
            model.load_adapter(mixed)
        model.load_adapter(adapter(tmp_path / "b", factors(layers={"square": (4, 4), "flat": (6, 4)})))


def test_a_base_that_is_near_is_another(node, model, base, tmp_path):
    tensors = safetensors.torch.load_file(base)
    tensors["second.weight"] *= 1.001
    safetensors.torch.save_file(tensors | {"scale": tensors["scale"] * 1.001}, tmp_path / "near.safetensors")
    before = texts(model)
    with pytest.raises(WeightsError, match="holds other weights than the model"):
        model.load_adapter(adapter(tmp_path / "a"), base=tmp_path / "near.safetensors")
    assert texts(model) == before


def test_a_float64_weight_keeps_its_digits(tmp_path):
    linear = torch.nn.Linear(4, 3, bias=False).double().eval()
    inputs = {"input": {"shape": [2, 4], "dtype": "float64"}}

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, input):
            return self.linear(input)

    path = aotair.build(model=Wrapped().eval(), out=tmp_path / "m.aotair", inputs=inputs, buckets=[{}])
    tensors = factors(layers={"linear": (3, 4)})
    with aotair.load(path, enable_output_clone=True) as model:
        model.load_adapter(adapter(tmp_path / "a", tensors))
        a, b = (tensor.double() for tensor in tensors.values())
        x = torch.randn(2, 4).double()
        want = x @ (linear.weight + ALPHA / 2 * (b @ a)).t()
        torch.testing.assert_close(model(x), want.detach(), atol=1e-13, rtol=1e-13)


def test_a_closed_model_keeps_no_copies(node, tmp_path, base):
    model = node.load("derived")
    model.load_adapter(adapter(tmp_path / "a"), base=base)
    assert model._base.values
    model.close()
    assert not model._base.values


def test_a_closed_model(node, tmp_path, base):
    model = node.load("derived")
    model.close()
    with pytest.raises(ClosedError):
        model.load_adapter(adapter(tmp_path / "a"), base=base)
    with pytest.raises(ClosedError):
        model.unload_adapter()


def test_a_place_without_an_adapter(model, tmp_path):
    with pytest.raises(AotairError):
        model.load_adapter(tmp_path / "nowhere")

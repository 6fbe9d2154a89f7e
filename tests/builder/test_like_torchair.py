"""What TorchAir's documents write: options at their places, a config built line by line, a model object, a handle."""

import pytest
import torch
from cases import RECIPES

import aotair
from aotair.errors import ModelError, RecipeError
from aotair.recipe.config import CompilerConfig
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import ArgumentError
from aotair_runtime.format.schema import Origin

LINEAR = RECIPES["linear"]
X = {"shape": ["n", 4], "dtype": "float32", "pad": "any"}


def given(config: CompilerConfig, path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        config = getattr(config, parent)
    setattr(config, last, value)


ACCEPTED = {
    "mode": ["reduce-overhead", "npugraph_ex"],
    "aclgraph_config.use_custom_pool": [None],
    "debug.graph_dump.type": ["py", "txt", None],
    "debug.graph_dump.path": ["./graph_dump"],
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": [False, True],
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": [False, True],
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": [True],
    "debug.aclgraph.clone_input": [False],
    "debug.aclgraph.enable_output_clone": [True],
    "experimental_config.pattern_fusion_pass": [False],
    "experimental_config.remove_noop_ops": [False],
    "post_grad_custom_pre_pass": [print],
}
REFUSED = {
    "mode": ("max-autotune", "reduce-overhead"),
    "aclgraph_config.use_custom_pool": ((0, 1), r"aotair\.load\(path, pool=…\)"),
    "debug.graph_dump.type": ("pbtxt", "'py' or 'txt'"),
    "ge_config.optimization_switch": ("AutomaticUbFusion:off", "has no effect here: it is for GE"),
    "fusion_config.fusion_switch_file": ("x", "disabled_fusion_rules"),
    "debug.run_eagerly": (True, "device='cpu'"),
    "debug.aclgraph.static_capture_size_limit": (10, "Limits"),
    "dump_config.enable_dump": (True, r"graph_dump\.path"),
    "experimental_config.frozen_parameter": (True, "load_weights"),
    "experimental_config.aclgraph._aclnn_static_shape_kernel": (True, "kernels are the device's own"),
    "debug.nothing": (1, "unknown option 'nothing'; Debug has graph_dump, aclgraph"),
}


@pytest.mark.parametrize("path", ACCEPTED)
def test_what_has_a_meaning_is_accepted(path):
    for value in ACCEPTED[path]:
        config = CompilerConfig()
        given(config, path, value)
        *parents, last = path.split(".")
        for parent in reversed(parents):
            last, value = parent, {last: value}
        parse_recipe(LINEAR | {"config": {last: value}})


@pytest.mark.parametrize("path", REFUSED)
def test_what_has_none_is_refused_with_what_has(path):
    value, words = REFUSED[path]
    with pytest.raises((ValueError, AttributeError), match=words):
        given(CompilerConfig(), path, value)
    for name in reversed(path.split(".")):
        value = {name: value}
    if path != "debug.nothing":
        with pytest.raises(RecipeError, match=words):
            parse_recipe(LINEAR | {"config": value})


def test_a_config_built_as_the_documents_build_it(tmp_path):
    seen = []

    def look(gm, example_inputs, config):
        seen.append(config)

    config = aotair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.debug.aclgraph.clone_input = False
    config.debug.aclgraph.enable_output_clone = True
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path / "dump")
    config.post_grad_custom_pre_pass = look
    program = read_program(aotair.build(LINEAR, tmp_path / "a.aotair", config=config))
    assert (program.options.clone_input, program.options.enable_output_clone) == (False, True)
    assert seen[0].debug.aclgraph.clone_input is False
    texts = [file.read_text() for file in sorted((tmp_path / "dump").glob("*.py"))]
    assert texts and all("def forward" in text for text in texts) and "torch.ops.aten.linear.default" in texts[0]


class Ranked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).relu()


def test_a_model_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Ranked().half().train()
    built = aotair.build(
        model=model, inputs={"x": X | {"dtype": "float16"}}, buckets={"n": [2, 4]}, verify={"atol": 1e-2, "rtol": 1e-2}
    )
    assert built.name == "Ranked.aotair" and model.training and model.layer.weight.requires_grad
    assert model.layer.weight.dtype is torch.float16
    x = torch.randn(3, 4).half()
    described = aotair.build(model=model, out="b.aotair", inputs={"x": x}, config=aotair.CompilerConfig())
    with torch.no_grad():
        torch.testing.assert_close(aotair.load(described)(x), model(x), atol=1e-2, rtol=1e-2)
    assert read_program(built).origin == Origin(), "nobody knows what it follows from"
    with pytest.raises(RecipeError, match="the model is an object"):
        aotair.build(model=model, inputs={"x": x}, like=aotair.build(LINEAR))


class Locked(torch.nn.Module):
    def __deepcopy__(self, memo):
        raise RuntimeError("there is one of me")


def test_a_model_object_is_the_only_description(tmp_path):
    for arguments in ({}, {"recipe": LINEAR, "model": Ranked()}, {"recipe": LINEAR, "inputs": {}}):
        with pytest.raises(RecipeError, match="what to build is described twice, or not at all"):
            aotair.build(out=tmp_path / "a.aotair", **arguments)
    with pytest.raises(RecipeError, match=r"model\.factory: given beside a model"):
        parse_recipe(LINEAR, needs_factory=False)
    with pytest.raises(RecipeError, match=r"model\.factory: missing"):
        parse_recipe(LINEAR | {"model": {}})
    with pytest.raises(RecipeError, match="nothing: unknown key"):
        aotair.build(model=Ranked(), inputs={"x": torch.ones(3, 4)}, nothing=1)
    with pytest.raises(ModelError, match="cannot be copied: RuntimeError: there is one of me"):
        aotair.build(model=Locked(), inputs={"x": torch.ones(3, 4)}, out=tmp_path / "a.aotair")
    assert not list(tmp_path.iterdir())


def test_a_handle_stands_for_one_pool(tmp_path):
    path = aotair.build(LINEAR, tmp_path / "a.aotair")
    x = torch.randn(4, 4)
    with torch.no_grad():
        a, b = aotair.load(path, pool=(0, 7)), aotair.load(path, pool=(0, 7))
        other, own = aotair.load(path, pool=(0, 8)), aotair.load(path)
        arenas = [one(x).untyped_storage().data_ptr() for one in (a, b, other, own)]
    assert arenas[0] == arenas[1] and len(set(arenas)) == 3
    want = a(x).clone()
    torch.testing.assert_close(b(x), want)
    for wrong in ("npu", (0,), (0, 1.5), 3):
        with pytest.raises(ArgumentError, match=r"pool is none(.|\n)*graph_pool_handle"):
            aotair.load(path, pool=wrong)

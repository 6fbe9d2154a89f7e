"""One bucket: concrete sizes, lowered composites, ops taken apart that a node lacks; the encoder's graphs as text."""

import models
import pytest
import torch
from cases import MODELS, RECIPES
from exports import exported

import aotair
from aotair.errors import UnsupportedError
from aotair.graph.show import show
from aotair.lower.specialise import specialise
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program


def test_every_stage_of_the_encoder_as_text(golden_text, tmp_path):
    recipe, result = exported("encoder")
    observer = Observer(Target("cpu"), dump=tmp_path)
    observer.stage("export", result.module)
    pipeline.apply(result.module, recipe.config, observer)
    for file in sorted(tmp_path.iterdir()):
        golden_text(f"encoder_{file.name}", file.read_text())
    concrete = specialise(result.module, {"ids": (4, 8), "mask": (4, 8)}, "test")
    golden_text("encoder_specialised.txt", show(concrete))


def test_specialising_leaves_no_sizes_and_copies_constants_that_are_returned():
    _, result = exported("encoder")
    concrete = specialise(result.module, {"ids": (1, 4), "mask": (1, 4)}, "test")
    for node in concrete.graph.nodes:
        assert "sym" not in str(node.target)
        value = node.meta["val"] if node.op != "output" else None
        if isinstance(value, torch.Tensor):
            assert all(type(size) is int for size in value.shape)
    _, views = exported("views")
    concrete = specialise(views.module, {"x": (3, 4)}, "test")
    returned = concrete.graph.output_node().args[0][1]
    assert returned.target is torch.ops.aten.clone.default


def apart(name: str, device: str) -> dict:
    return {
        "name": "apart",
        "model": {"factory": f"{MODELS}:Apart", "kwargs": {"name": name}},
        "inputs": {"x": {"shape": ["n", 4, 4, 4], "dtype": "float32"}},
        "buckets": {"n": [1, 2]},
        "target": {"device": device},
    }


@pytest.mark.parametrize("device", ["npu", "cuda"])
@pytest.mark.parametrize("name", models.APART)
def test_an_op_without_a_kernel_becomes_what_it_is_made_of(name, device, tmp_path):
    path = aotair.build(apart(name, device), tmp_path / "x.aotair")
    with aotair.load(path, device="cpu") as model:
        x = torch.randn(2, 4, 4, 4)
        torch.testing.assert_close(model(x), models.APART[name](x))


def test_an_op_whose_parts_have_no_kernel_is_refused_when_it_is_built(tmp_path):
    with pytest.raises(UnsupportedError, match=r"_logcumsumexp.* has no kernel on npu \(test_specialise") as caught:
        aotair.build(apart("logcumsumexp", "npu") | {"model": {"factory": f"{__file__}:logcumsumexp"}}, tmp_path / "x")
    assert not (tmp_path / "x").exists() and "host" in caught.value.fix


class LogCumSumExp(torch.nn.Module):
    def forward(self, x):
        return x.logcumsumexp(-1)


def logcumsumexp() -> torch.nn.Module:
    return LogCumSumExp()


def test_what_has_an_out_kernel_stays_whole(tmp_path):
    """gelu has a kernel of torch_npu that writes into given memory, and is not taken apart."""
    path = aotair.build(RECIPES["encoder"] | {"target": {"device": "npu"}}, tmp_path / "x.aotair")
    names = {op.name for op in read_program(path).ops}
    assert not {name for name in names if name.startswith(("aten::erf", "aten::rsqrt"))}, names

"""What an artifact for another device asks of it, decided on a machine that has neither the device nor its package."""

import sys

import kernel_lists
import pytest
import torch
from cases import RECIPES, ROOT
from nodes import for_device

import aotair
from aotair.errors import RecipeError
from aotair.target.out_variants import out_variant
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.artifact.requirements import check_requirements
from aotair_runtime.devices import open_device
from aotair_runtime.errors import RequirementError

aten = torch.ops.aten


def test_the_list_of_cuda_kernels_is_torchs_own():
    assert (ROOT / "aotair" / "target" / "kernels" / "cuda.txt").read_text() == kernel_lists.cuda()


@pytest.mark.parametrize("kind", ["cpu", "cuda", "npu"])
def test_out_variants_that_each_device_has(kind: str):
    target = Target(kind)
    assert out_variant(aten.addmm.default, target) is aten.addmm.out
    assert out_variant(aten.index_select.default, target) is aten.index_select.out
    assert out_variant(aten.add.Tensor, target) is aten.add.out


def test_out_variants_that_a_device_lacks():
    """CPU kernels write the sorted indices into given tensors; what torch_npu lacks would run on the host."""
    assert out_variant(aten.scatter_add.default, Target("cpu")) is aten.scatter_add.out
    assert out_variant(aten.scatter_add.default, Target("npu")) is None
    assert out_variant(aten.native_layer_norm.default, Target("npu")) is None


@pytest.mark.parametrize("device", ["npu", "cuda"])
def test_states_are_copied_into_on_every_device(device, tmp_path):
    program = read_program(aotair.build(for_device("swap", device), tmp_path / "a.aotair"))
    assert program.requirements.device == device and "aten::copy_" in {op.name for op in program.ops}


def test_an_artifact_for_the_npu_is_built_and_proved_here(tmp_path):
    assert "torch_npu" not in sys.modules
    recipe = RECIPES["encoder"] | {"target": {"device": "npu", "soc": "Ascend910B", "torch_npu": "2.13"}}
    path = aotair.build(recipe, tmp_path / "npu.aotair")
    program = read_program(path)
    assert (program.requirements.device, program.requirements.soc) == ("npu", "Ascend910B")
    assert program.requirements.vendor_min == "2.13"
    with pytest.raises(RequirementError, match="no torch_npu"):
        aotair.load(path)
    x = torch.ones(1, 4, dtype=torch.int64)
    want = aotair.load(aotair.build(RECIPES["encoder"], tmp_path / "cpu.aotair"))(x, x)
    torch.testing.assert_close(aotair.load(path, device="cpu")(x, x), want)


class _FakeDevice:
    kind, is_host, name, vendor_version = "npu", False, "Ascend910B1", "2.13.0"


@pytest.mark.parametrize(
    ("requirements", "says"),
    [
        ({"vendor_min": "99.0"}, "package for npu is too old"),
        ({"soc": "Ascend310"}, "built for another SoC"),
        ({"device": "cuda"}, "built for another device"),
    ],
)
def test_requirements_are_checked_before_the_weights_are_read(built, requirements: dict, says: str):
    from dataclasses import replace

    program = read_program(built("linear"))
    good = replace(
        program, requirements=replace(program.requirements, device="npu", soc="Ascend910B", vendor_min="2.9")
    )
    check_requirements(good, _FakeDevice(), "here")
    bad = replace(good, requirements=replace(good.requirements, **requirements))
    with pytest.raises(RequirementError, match=says):
        check_requirements(bad, _FakeDevice(), "here")


def test_the_order_of_the_checks(built, monkeypatch):
    def refuse(*_):
        raise RequirementError("not here")

    monkeypatch.setattr("aotair_runtime.model.check_requirements", refuse)
    monkeypatch.setattr("aotair_runtime.model.with_weights", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(RequirementError, match="not here"):
        aotair.load(built("linear"))


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"device": "cpu", "torch_npu": "2.13"}, "torch_npu is a requirement of device: npu"),
        ({"device": "cpu", "soc": "Ascend910B"}, "soc is how the name of an NPU or a GPU begins"),
        ({"device": "npu", "soc": "ascend910b"}, "soc is how an NPU's name begins"),
        ({"device": "npu", "soc": ""}, "at least 1 character"),
        ({"device": "cuda", "hccl_buffer": "1MiB"}, "hccl_buffer is for communicators of device: npu"),
        ({"device": "npu", "hccl_buffer": 1000}, "hccl_buffer takes whole MiB"),
        ({"device": "npu", "hccl_buffer": 0}, "hccl_buffer takes whole MiB"),
    ],
)
def test_what_is_not_for_a_device_is_refused(target: dict, says: str):
    with pytest.raises(RecipeError, match=says):
        aotair.build(RECIPES["linear"] | {"target": target})


@pytest.mark.parametrize("name", ["cuda", "npu"])
def test_a_device_that_this_node_lacks(name: str):
    if name == "cuda" and torch.cuda.is_available():
        name = "cuda:99"
    with pytest.raises(RequirementError, match="this node has no"):
        open_device(name)


def test_an_out_variant_that_leaves_a_result_out_is_not_used(tmp_path):
    """Where Q and R both lie column by column, torch's own leaves R as it was."""

    class Factors(torch.nn.Module):
        def forward(self, x):
            q, r = torch.linalg.qr(x)
            return q @ r, r.abs()

    x = torch.randn(5, 5)
    with aotair.load(aotair.build(model=Factors().eval(), inputs={"x": x}, out=tmp_path / "q.aotair")) as model:
        for got, want in zip(model(x), Factors()(x)):
            torch.testing.assert_close(got, want)

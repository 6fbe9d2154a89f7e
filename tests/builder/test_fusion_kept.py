"""TorchAir's own example of a rule, without torch_npu; what its extra_check declines is nobody else's to fuse."""

import random

import near
import pytest
import torch
from cases import ROOT
from marks import long
from rules import add_and_norm, add_rms_norm
from torch._subclasses.fake_tensor import FakeTensorMode

import aotair
from aotair import fusion
from aotair.builder import build_with_summary, explain
from aotair.fusion import register
from aotair.passes import fuse
from aotair.passes.pipeline import pipeline
from aotair.summary import Listener
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program

FILE = str(ROOT / "tests" / "rules.py")
RULE = "add_and_norm"
aten, npu = torch.ops.aten, torch.ops.npu


@pytest.fixture(autouse=True)
def only_here(monkeypatch):
    monkeypatch.setattr(register, "_rules", [])
    monkeypatch.setattr(register, "_of_function", {})


def recipe(factory: str, shapes: dict, **parts) -> dict:
    return {
        "name": "x",
        "model": {"factory": f"{FILE}:{factory}", "dtype": "float16", **parts},
        "target": {"device": "npu"},
        "inputs": {name: {"shape": list(shape), "dtype": "float16"} for name, shape in shapes.items()},
        "fusion": [f"{FILE}:norms_of_7168"],
    }


def example(width: int) -> dict:
    shape = (1, 1, width)
    return recipe("AddAndNorm", {"data1": shape, "data2": shape, "gamma": (width,)})


def test_torchairs_example_fuses_where_its_check_says_yes(tmp_path):
    summary = build_with_summary(example(7168), tmp_path / "x.aotair", Listener())
    assert [count for name, count in summary.rewrites.items() if name.endswith(RULE)] == [1]
    ops = {op.name for op in read_program(tmp_path / "x.aotair").ops}
    assert "npu::npu_add_rms_norm" in ops and "npu::npu_rms_norm" not in ops


def test_where_it_says_no_nobody_fuses_and_explain_says_who(tmp_path):
    summary = build_with_summary(example(64), tmp_path / "x.aotair", Listener())
    assert not summary.rewrites.get("lift_add_rms_norm") and not any(n.endswith(RULE) for n in summary.rewrites)
    ops = {op.name for op in read_program(tmp_path / "x.aotair").ops}
    assert "npu::npu_rms_norm" in ops and "npu::npu_add_rms_norm" not in ops
    found = explain(example(64))
    (own,) = (name for name in found.counts() if name.endswith(RULE))
    assert "its extra_check says no" in found.text(own)
    assert f"the extra_check of {own} says no to fusing these ops here" in found.text("lift_add_rms_norm")
    without = example(64) | {"fusion": []}
    assert explain(without).counts()["lift_add_rms_norm"] == (1, 0), "the same model without the user's rule"


@pytest.mark.parametrize("seed", [0, 1, 2, long(3), long(4), long(5)])
def test_each_place_is_the_users_or_kept_or_ours(tmp_path, seed):
    """At random: the user's rule is for the default epsilon; its check for one width. Other epsilons are lifted."""
    chooser = random.Random(seed)
    places = [[chooser.choice([32, 7168]), chooser.choice([1e-6, 1e-3]), chooser.random() < 0.5] for _ in range(6)]
    made = recipe("Norms", {"x": (2, 7200)}, kwargs={"places": places})
    theirs = sum(width == 7168 and epsilon == 1e-6 for width, epsilon, _ in places)
    kept = sum(width != 7168 and epsilon == 1e-6 for width, epsilon, _ in places)
    found = explain(made).counts()
    own = next(name for name in found if name.endswith(RULE))
    assert found[own] == (theirs, kept)
    assert found["lift_add_rms_norm"] == (len(places) - theirs - kept, kept)
    assert found["lift_rms_norm"][0] == sum(plain for _, _, plain in places)
    build_with_summary(made, tmp_path / "x.aotair", Listener())  # the numbers are the original's


def known(name: str) -> fusion.Rule:
    return next(rule for rule in fusion.RULES if rule.name == name)


def traced(function, inputs: list) -> torch.fx.GraphModule:
    apart = [value.clone() for value in inputs]
    with FakeTensorMode() as mode:
        return fusion.matcher.fwd_only(function, [mode.from_tensor(value) for value in apart])


def fired(graph, rule: fusion.Rule):
    edits = near.edits_of(rule.name)
    fuse.run(graph, edits, rule)
    return edits


def declined(search_fn, inputs: list, function, rule: str, check=lambda match: False) -> tuple[int, list[str]]:
    """How often aotair's rule fires in the graph of `function`, after a user's own said no; and why not elsewhere."""
    aotair.register_replacement(search_fn, lambda *args: search_fn(*args), inputs, extra_check=check)
    graph = traced(function, inputs)
    for one in fusion.registered():
        fired(graph, one)
    edits = fired(graph, known(rule))
    return edits.count, [account.text for account in edits.accounts if not account.rewritten]


LEFT, RIGHT = torch.randn(2, 3, 128).half(), torch.randn(2, 128, 128).half() / 128
ROWS, GAMMA = torch.randn(2, 64).half(), torch.ones(64).half()


def swapped(x, y):
    return (aten.transpose.int(aten.bmm.default(x, y), 0, 1) * 1,)


def test_a_rule_for_the_one_op_that_would_be_replaced_keeps_it():
    count, left = declined(lambda x, y: torch.bmm(x, y), [LEFT, RIGHT], swapped, "transpose_batchmatmul")
    assert count == 0 and "says no to fusing these ops here" in left[0]


def test_a_rule_for_one_op_among_several_keeps_nothing_from_being_fused():
    def summed(x1, x2, gamma):
        total = aten.add.Tensor(x1, x2)
        return npu.npu_rms_norm.default(total, gamma)[0] * 1, total * 1

    asked = []
    aotair.register_replacement(lambda x, y: x + y, lambda x, y: y + x, [ROWS, ROWS], extra_check=asked.append)
    graph = traced(summed, [ROWS, ROWS, GAMMA])
    edits = [fired(graph, rule) for rule in (*fusion.registered(), known("lift_add_rms_norm"))]
    assert len(asked) == 1 and [one.count for one in edits] == [0, 1]


def test_a_part_of_what_was_declined_is_kept_too():
    """The user's pattern is a sum and a plain norm; the norm alone is not lifted out of it."""

    def plain(x1, x2, gamma):
        wide = (x1 + x2).float()
        return gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x1.dtype)

    inputs = [ROWS, ROWS, GAMMA]
    count, left = declined(plain, inputs, lambda *args: (plain(*args) * 1,), "lift_rms_norm")
    assert count == 0 and "says no" in left[0]
    count, _ = declined(plain, inputs, lambda *args: (plain(*args) * 1,), "lift_rms_norm", lambda match: True)
    assert count == 0, "it was replaced by the user's own, which looks the same"


def test_a_users_rule_is_asked_after_each_lifting_rule():
    from aotair.recipe.config import CompilerConfig

    aotair.register_replacement(add_and_norm, add_rms_norm, [ROWS, ROWS, GAMMA])
    (own,) = fusion.registered()
    names = [step.name for step in pipeline(CompilerConfig(), Target("npu"))]
    lifting = [rule.name for rule in fusion.RULES if rule.lifts]
    assert all(names[names.index(name) + 1] == own.name for name in lifting)
    assert names.index(own.name) < names.index(lifting[0])
    names = [step.name for step in pipeline(CompilerConfig(), Target("cpu"))]
    assert names.count(own.name) == 2  # where composites are apart, and where they are whole


# ---- what names the NPU ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch._C._get_privateuse1_backend_name() == "npu", reason="torch_npu is installed: names are real")
def test_names_of_the_npu_mean_the_host_within():
    with aotair.host_as_npu():
        for made in (
            torch.empty(2, device="npu"), torch.zeros(2).to("npu:0"), torch.tensor([1.0], device="npu:1"),
            torch.ones(2).npu(), torch.nn.Linear(2, 2, device="npu").npu().weight, torch.nn.Linear(2, 2).to("npu").bias,
            torch.arange(2, device=torch.device("npu", 0)), torch.empty(2, device=torch.device(type="npu")),
        ):  # fmt: skip
            assert made.device.type == "cpu" and not hasattr(made, "fake_mode")
        with aotair.host_as_npu(), FakeTensorMode():
            assert torch.empty(2, device="npu").device.type == "cpu"
        assert torch.ones(2).npu().device.type == "cpu", "the inner one took nothing away"
        assert torch.device("meta").type == "meta" and torch.empty(1, device="meta").is_meta
    assert not hasattr(torch.Tensor, "npu") and not hasattr(torch.nn.Module, "npu")
    with pytest.raises(RuntimeError, match="device string: npu"):
        torch.empty(2, device="npu")


@pytest.mark.skipif(torch._C._get_privateuse1_backend_name() == "npu", reason="torch_npu is installed: names are real")
def test_real_tensors_and_devices_in_the_functions_of_a_rule():
    def search(x, y):
        return x + y * torch.ones((), device="npu")

    def replace(x, y):
        return y * torch.ones((), device="npu").npu() + x

    with aotair.host_as_npu():
        inputs = [torch.randn(2, 4, device="npu"), torch.randn(2, 4).npu()]
        graph = traced(search, inputs)
    aotair.register_replacement(search, replace, inputs)
    (rule,) = fusion.registered()
    assert fired(graph, rule).count == 1

"""Experts whose tokens travel: what each rank computes, what the proof sees of it, and what a recipe may say."""

from pathlib import Path

import pytest
import routed
import torch
from marks import long
from met import collectives
from mixtures import recipe as mixture

import aotair
from aotair.errors import ModelError, ProofError
from aotair.parallel import styles
from aotair.parallel.plan import places, planned
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Axis, Shard

DISPATCHED = {"*": "auto", "*.experts": "expert_dispatch"}


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, long({"tp": 2, "dp": 4})], ids=str)
def test_each_rank_has_some_experts_and_the_program_says_whose_inputs_are_its_own(tmp_path: Path, mesh: dict):
    program = read_program(aotair.build(routed.recipe(**mesh), tmp_path / "a.aotair"))
    shards = {constant.name: constant.shard for constant in program.constants if constant.shard is not None}
    number = [*mesh].index("dp")
    assert shards["experts.gate_up_proj"] == shards["experts.down_proj_bias"] == Shard(number, 0, mesh["dp"])
    assert shards["up.weight"] == Shard(1 - number, 0, mesh["tp"]) and "gate.weight" not in shards
    assert collectives(program) == {"air::all_gather": 3, "air::reduce_scatter": 1, "air::all_reduce": 1}
    assert program.own_inputs == (number,)


@pytest.mark.parametrize("name", ["qwen3_moe", long("mixtral"), long("deepseek_v3")])
def test_mixtures_of_transformers_keep_their_own_plan_beside_it(tmp_path: Path, name: str):
    recipe = mixture(name) | {"mesh": {"dp": 2, "tp": 2}, "parallel": DISPATCHED, "buckets": {"batch": [2], "seq": [8]}}
    program = read_program(aotair.build(recipe, tmp_path / "a.aotair"))
    cut = {constant.shard.axis for constant in program.constants if constant.shard is not None}
    assert cut == {0, 1} and program.own_inputs == (0,)
    assert collectives(program)["air::reduce_scatter"] >= 1 and collectives(program)["air::all_reduce"] >= 2


def test_on_npus_they_are_grouped_products_over_all_tokens(tmp_path: Path):
    program = read_program(aotair.build(routed.npu_recipe(dp=2), tmp_path / "a.aotair"))
    names = {op.name for op in program.ops}
    assert {"npu::npu_grouped_matmul", "npu::npu_moe_init_routing_v2", "air::reduce_scatter.out"} <= names


# ---- planted faults --------------------------------------------------------------------------------------------------


def first_tokens(x: torch.Tensor, experts: styles.Shared) -> torch.Tensor:
    """Every rank takes its own tokens for those of all."""
    return torch.cat([x] * experts.place.size)


def other_way_round(x: torch.Tensor, experts: styles.Shared) -> torch.Tensor:
    """What the ranks have, in another order than that in which it comes back."""
    gathered = torch.ops.air.all_gather(x.contiguous(), experts.place.size, experts.place.name)
    return torch.cat(gathered.chunk(experts.place.size)[::-1])


@pytest.mark.parametrize("fault", [first_tokens, other_way_round])
def test_tokens_that_are_not_those_of_their_rank_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault):
    monkeypatch.setattr(styles, "_gathered_first", fault)
    with pytest.raises(ProofError):
        aotair.build(routed.recipe(dp=2), tmp_path / "a.aotair")


@pytest.mark.parametrize(
    ("fault", "changed"),
    [
        ("longer", {"buckets": {"batch": [2], "seq": [4, 8]}}),
        long("first five", {"buckets": {"batch": [2], "seq": [4, 8]}, "dimensions": {"seq": {"min": 4}}}),
        ("batch", {"buckets": {"batch": [1, 2], "seq": [4]}}),
    ],
)
def test_what_only_the_smallest_bucket_computes_right_is_seen(tmp_path: Path, fault: str, changed: dict):
    """Each builds for one rank: a call runs there in no other bucket."""
    one = routed.recipe(fault=fault) | changed
    aotair.build(one | {"parallel": "auto"}, tmp_path / "one.aotair")
    with pytest.raises(ProofError, match="where another rank's inputs are larger"):
        aotair.build(routed.recipe(fault=fault, dp=2) | changed, tmp_path / "a.aotair")


def test_a_layer_that_adds_up_what_are_other_ranks_tokens_is_seen(tmp_path: Path):
    summed = routed.recipe(dp=2) | {
        "parallel": {"experts": "expert_dispatch", "up": "colwise@dp", "down": "rowwise@dp"}
    }
    with pytest.raises(ProofError):
        aotair.build(summed, tmp_path / "a.aotair")


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_it_is_for_the_axis_dp_unless_it_says_another():
    model = routed.Routed()
    for text, mesh, axis in (("", {"tp": 2, "dp": 2}, "dp"), ("@x", {"x": 2}, "x")):
        axes = tuple(Axis(*one) for one in mesh.items())
        (one,) = planned(model, {"experts": f"expert_dispatch{text}"}, axes, "here")
        assert one.place == places(axes)[axis]


@pytest.mark.parametrize(
    ("parallel", "mesh", "words"),
    [
        ({"experts": "expert_dispatch"}, {"tp": 2}, "expert_dispatch has no axis"),
        ({"experts": "expert_dispatch"}, {"dp": 3}, "nothing of the model can be shared out"),
        ({"experts": "auto@dp"}, {"dp": 2}, "no such style or axis"),
        ({"pairs": "expert_dispatch"}, {"dp": 2}, "gives tuple"),
        ({"numbered": "expert_dispatch"}, {"dp": 2}, r"is given \[\]"),
        ({"*": "auto"}, {"dp": 2}, "nothing of the model is shared out"),
    ],
)
def test_what_is_refused(tmp_path: Path, parallel: dict, mesh: dict, words: str):
    model = {"factory": f"{Path(routed.__file__).resolve()}:Unlike"}
    with pytest.raises(ModelError, match=words):
        aotair.build(routed.recipe(**mesh) | {"parallel": parallel, "model": model}, tmp_path / "a.aotair")

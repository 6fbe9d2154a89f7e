"""Do artifacts of several ranks run on simulated NPUs, over torch_npu's own HCCL, captured, in any legal order?"""

from pathlib import Path

import pytest
import rankmodels
import routed
import safetensors.torch
import torch
from cases import MEETS_IN_PRODUCTS, RECIPES, SHARED_BY_TORCH, SHARED_DECODE, SHARES_ITSELF
from marks import long
from met import collectives
from models import Deep, MeetsInProducts, Shared, SharesItself
from rank_scenarios import decode_inputs
from ranks import Ranks
from row_models import IDS, PLAN, Blocks
from torch_shares import SharedByTorch

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format import codec
from aotair_runtime.format.packed import packed_constants

SEEDS, FEW_SEEDS = 25, 8


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as found:
        yield found


def original(recipe: dict) -> torch.nn.Module:
    return load_model(job_of(parse_recipe(recipe | {"mesh": {}, "parallel": "auto"})))


def assert_alike_in_any_order(one: dict) -> None:
    """The answers of a rank in random orders are those that it gave first, again and again."""
    count = len(one["answers"])
    assert one["orders"] and not len(one["orders"]) % count
    for number, got in enumerate(one["orders"]):
        assert torch.equal(got, one["answers"][number % count]), f"order {number // count + 1}"


def own_answers(ranks: Ranks, recipe: dict, path: Path, seeds: int, **tolerance: float) -> list[dict]:
    """What each of two replicas has of calls of its own sizes: the original's answers, in any order."""
    sizes = [[(1, 3), (3, 8), (2, 2)], [(3, 2), (1, 1), (1, 7)]]  # of each rank's calls
    inputs = [[torch.randint(24, size) for size in each] for each in sizes]
    model, found = original(recipe), ranks.run(rankmodels.own_answers, str(path), inputs, seeds)
    for given, one in zip(inputs, found, strict=True):
        for ids, got in zip(given, one["answers"], strict=True):
            model.before.zero_()
            torch.testing.assert_close(got, model(ids), **tolerance)
        assert_alike_in_any_order(one)
    return found


@pytest.mark.parametrize("mesh", [{"tp": 2}, [{}, {"tp": 2}]], ids=["ranks alone", "one rank too"])
def test_a_model_that_is_shared_out_answers_as_the_original(ranks: Ranks, tmp_path: Path, mesh: object):
    recipe = RECIPES["shared"] | {"target": {"device": "npu"}, "mesh": mesh}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    torch.manual_seed(9)
    second, other = Shared(), tmp_path / "other.safetensors"
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in second.state_dict().items()}, other)
    inputs = [torch.randint(24, size) for size in ((1, 3), (3, 4))]
    model = original(recipe)

    def answers(of: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
        of.calls.zero_()
        return of(given)

    for one in ranks.run(rankmodels.calls, str(path), inputs, SEEDS, str(other)):
        for given, got, after in zip(inputs, one["answers"], one["other"], strict=True):
            torch.testing.assert_close(got, answers(model, given), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(after, answers(second, given), atol=1e-5, rtol=1e-5)
        assert_alike_in_any_order(one)
        assert all(one["golden"]) and one["captures"] == 2 and one["collectives"] == 2 * 4


@pytest.mark.parametrize("width", [16, 256])  # the second: with kernels that multiply and exchange
def test_a_residual_in_rows_is_that_of_the_original_in_any_order(ranks: Ranks, tmp_path: Path, width: int):
    fused, near = width == 256, 1e-2 if width == 256 else 1e-5
    model = Blocks(width=width).to(torch.float16 if fused else torch.float32)
    asked = {"inputs": IDS, "buckets": {"batch": [1, 3], "seq": [43 if fused else 5]}, "parallel": PLAN}
    path = aotair.build(model=model, out=tmp_path / "a.aotair", target={"device": "npu"}, mesh={"tp": 2}, **asked)
    met = collectives(codec.parse((path / "program.msgpack").read_bytes(), ""))
    assert ("npu::npu_mm_reduce_scatter_base" in met) == fused
    safetensors.torch.save_file(dict(model.state_dict()), tmp_path / "same.safetensors")
    inputs = [torch.randint(32, size) for size in ((1, 3), (3, 5))]
    for one in ranks.run(rankmodels.calls, str(path), inputs, SEEDS, str(tmp_path / "same.safetensors")):
        for given, got, after in zip(inputs, one["answers"], one["other"], strict=True):
            torch.testing.assert_close(got.float(), model.float()(given), atol=near, rtol=near)
            assert torch.equal(got, after)
        assert_alike_in_any_order(one)
        # Of each call: three sums that are scattered, and the rows of three norms.
        assert all(one["golden"]) and one["captures"] == 2 and one["collectives"] == 2 * 6


def test_stages_answer_as_the_original_in_any_order(ranks: Ranks, tmp_path: Path):
    recipe = RECIPES["deep"] | {"target": {"device": "npu"}}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    torch.manual_seed(9)
    second, other = Deep(), tmp_path / "other.safetensors"
    safetensors.torch.save_file(dict(second.state_dict()), other)
    inputs, first = [torch.randint(24, size) for size in ((1, 3), (3, 4))], original(recipe)

    def answers(of: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
        for layer in of.layers:
            layer.seen.zero_()
        return of(given)

    for rank, one in enumerate(ranks.run(rankmodels.calls, str(path), inputs, SEEDS, str(other))):
        for given, got, after in zip(inputs, one["answers"], one["other"], strict=True):
            torch.testing.assert_close(got, answers(first, given), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(after, answers(second, given), atol=1e-5, rtol=1e-5)
        assert_alike_in_any_order(one)
        # Of each call: a table, a head, and what each stage says to the other.
        assert all(one["golden"]) and one["captures"] == 2 and one["collectives"] == 2 * 4, rank


def test_a_call_with_lists_of_the_host_that_one_rank_drives(ranks: Ranks, tmp_path: Path):
    """Each rank replaces what its captured graph has for lists."""
    recipe = RECIPES["decode"] | {"target": {"device": "npu"}}
    path = aotair.build(recipe | SHARED_DECODE, tmp_path / "a.aotair")
    given = [decode_inputs(count) for count in (1, 2, 3, 4, 2)]
    given.append((*given[1][:2], [3, 3], [4, 1]))
    model = load_model(job_of(parse_recipe(RECIPES["decode"])))
    first, second = ranks.run(rankmodels.driven, str(path), given)
    for call, got in zip(given, first, strict=True):
        torch.testing.assert_close(got, model(*call), atol=1e-4, rtol=1e-4)
    assert second == [] and not torch.equal(first[1], first[5])


def test_a_model_that_calls_collectives_itself(ranks: Ranks, tmp_path: Path):
    path = aotair.build(SHARES_ITSELF | {"target": {"device": "npu"}}, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, inputs = SharesItself(), [torch.randn(2, 16), torch.randn(6, 16)]
    for answers in ranks.run(rankmodels.answers, str(path), inputs):
        for given, got in zip(inputs, answers, strict=True):
            torch.testing.assert_close(got, model(given), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("nz", [False, True])
def test_products_that_meet_other_ranks(ranks: Ranks, tmp_path: Path, nz: bool):
    """By kernels that find their communicator by its name, in any legal order, and with other weights."""
    config = {"experimental_config": {"weight_nz": nz}}
    path = aotair.build(MEETS_IN_PRODUCTS | {"config": config}, tmp_path / "a.aotair")
    program = codec.parse((path / "program.msgpack").read_bytes(), "")
    fused = {f"npu::npu_{name}" for name in ("mm_all_reduce_base", "mm_reduce_scatter_base", "all_gather_base_mm")}
    assert {op.name for op in program.ops} >= fused and ({op for _, op in packed_constants(program)} >= fused) == nz
    torch.manual_seed(9)
    second, other = MeetsInProducts(), tmp_path / "other.safetensors"
    safetensors.torch.save_file(dict(second.state_dict()), other)
    first, inputs = original(MEETS_IN_PRODUCTS), [torch.randn(size, 256).half() for size in (2, 130)]
    for one in ranks.run(rankmodels.calls, str(path), inputs, SEEDS, str(other)):
        for given, got, after in zip(inputs, one["answers"], one["other"], strict=True):
            torch.testing.assert_close(got, first(given), atol=1e-2, rtol=1e-2)
            torch.testing.assert_close(after, second(given), atol=1e-2, rtol=1e-2)
        assert_alike_in_any_order(one)
        assert all(one["golden"]) and one["captures"] == 2 and one["collectives"] == len(inputs) * 3


def test_replicas_that_share_out_their_experts(ranks: Ranks, tmp_path: Path):
    """Each has calls of its own sizes, and runs the graph that holds those of both."""
    recipe = routed.npu_recipe(dp=2)
    recipe["target"] |= {"hccl_buffer": "3MiB"}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    for one in own_answers(ranks, recipe, path, SEEDS, atol=2e-2, rtol=2e-2):
        assert one["calls"] == [0, 0, 1 + SEEDS, 2 * (1 + SEEDS)], "both ranks run (3, 4), (3, 8), (3, 8)"
        assert one["communicators"] == 1 and one["buffers"] == one["promised"] == 2 * 3 << 20


@pytest.fixture(scope="module")
def ranks_of_a3():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMNPU_SOC", "Ascend910_9391")
        with Ranks(2) as found:
            yield found


@pytest.mark.parametrize("chosen", [long(2), 3])  # of two experts that a rank has
def test_tokens_go_to_the_ranks_of_their_experts_alone(ranks_of_a3: Ranks, tmp_path: Path, chosen: int):
    """By kernels with a communicator of their own, in any legal order."""
    recipe = routed.exchanged_recipe(chosen, dp=2) | {"buckets": {"batch": [3], "seq": [8]}}
    recipe["target"] |= {"hccl_buffer": "3MiB"}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    program = codec.parse((path / "program.msgpack").read_bytes(), "")
    assert collectives(program) == {"air::moe_distribute_dispatch": 1, "air::moe_distribute_combine": 1}
    for one in own_answers(ranks_of_a3, recipe, path, FEW_SEEDS, atol=0.25, rtol=2e-2):
        assert one["communicators"] == 2 and one["buffers"] == one["promised"] == 2 * (3 + 200) << 20


@pytest.mark.parametrize("sequence", [False, True])
def test_a_model_that_torch_shares_out(ranks: Ranks, tmp_path: Path, sequence: bool):
    wished = SHARED_BY_TORCH["model"] | {"kwargs": {"sequence": sequence}}
    path = aotair.build(SHARED_BY_TORCH | {"model": wished, "target": {"device": "npu"}}, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, inputs = SharedByTorch(), [torch.randint(48, size) for size in ((1, 3), (3, 8), (2, 5))]
    for answers in ranks.run(rankmodels.answers, str(path), inputs):
        for given, got in zip(inputs, answers, strict=True):
            torch.testing.assert_close(got, model(given), atol=1e-4, rtol=1e-4)

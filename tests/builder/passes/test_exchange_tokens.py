"""Tokens that every rank gathers go to the ranks of their experts alone: fires, declines, and what a graph then has.

The numbers of whole programs, over all their ranks, are compared by the builds here, and on simulated NPUs.
"""

import logging
from pathlib import Path

import pytest
import routed
import torch
from graphs import targets, trace
from marks import long
from met import collectives
from mixtures import recipe as mixture

import aotair
from aotair.errors import ProofError
from aotair.ops import experts as _experts  # noqa: F401 (defines the ops)
from aotair.passes import exchange_tokens
from aotair.passes.edits import Edits
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.devices import exchange
from aotair_runtime.format.schema import Axis
from aotair_runtime.memory.communicators import expert_buffers

air = torch.ops.air
A3 = Target("npu", mesh=(Axis("dp", 2),), soc="Ascend910_93")
TOKENS, WIDTH, RANKS, OWN, CHOSEN = 3, 1024, 2, 4, 2
DISPATCH, COMBINE = "air.moe_distribute_dispatch.default", "air.moe_distribute_combine.default"
A3_RECIPE = {"device": "npu", "soc": "Ascend910_93"}
EXCHANGED = {"air::moe_distribute_dispatch", "air::moe_distribute_combine"}


def gathered(x: torch.Tensor, axis: str, ranks: int = RANKS) -> torch.Tensor:
    return air.all_gather(x, ranks, axis)


def layer(x, chosen, weights, first_expert, *, own=OWN, ranks=RANKS, axis="dp", fault=""):
    """Experts that double what they get, as their module computes them."""
    number = gathered(chosen, axis, ranks) - first_expert
    mine = number.masked_fill((number < 0) | (number >= own), own)
    rows, places, ends = air.route_tokens(gathered(x, axis, ranks), mine, own + 1)
    last = ends[:-1][-1]
    made = rows * 2
    if fault == "reads the others":
        made = made + ends[-1].to(made.dtype)
    made = made.masked_fill((torch.arange(made.shape[0]) >= last).unsqueeze(-1), 0)
    sums = air.combine_tokens(made, places, gathered(weights, axis, ranks))
    reduce = "max" if fault == "another reduction" else "sum"
    answer = air.reduce_scatter(sums, reduce, ranks, axis)
    if fault == "sums twice":
        return answer, air.combine_tokens(made * 3, places, gathered(weights * 2, axis, ranks))
    return (answer,)


def given(tokens=TOKENS, width=WIDTH, chosen=CHOSEN, dtype=torch.float16, experts=RANKS * OWN):
    """Rows, for each the scores of all experts and weights of those with the highest, and the first own expert."""
    return (
        torch.randn(tokens, width).to(dtype),
        torch.rand(tokens, experts),
        torch.rand(tokens, chosen).to(dtype),
        torch.tensor([0]),
    )


def highest(scores: torch.Tensor, number: int) -> torch.Tensor:
    return scores.topk(number, -1)[1]


def after(inputs, target: Target = A3, limit: int | None = None, choose=highest, **options) -> torch.fx.GraphModule:
    def function(x, scores, weights, first_expert):
        return layer(x, choose(scores, weights.shape[1]), weights, first_expert, **options)

    module = trace(function, *inputs)
    exchange_tokens.run(module, Edits("exchange_tokens", target, limit))
    module.graph.lint()
    return module


@pytest.mark.parametrize("chosen", [2, 6])
def test_tokens_are_sent_and_come_back_by_the_kernels(chosen: int):
    module = after(given(chosen=chosen))
    found = targets(module)
    assert found.count(DISPATCH) == found.count(COMBINE) == 1
    assert not {"air.all_gather.default", "air.reduce_scatter.default", "air.route_tokens.default"} & {*found}
    assert "aten.masked_fill.Scalar" not in found, "what lies behind the rows is not read, and not masked"
    # A rank has four experts: of six of a token it can have no more.
    assert ("aten.constant_pad_nd.default" in found) == (chosen > OWN)
    (made,) = module.graph.output_node().all_input_nodes
    assert made.meta["val"].shape == (TOKENS, WIDTH) and made.meta["val"].dtype == torch.float16


def test_experts_and_weights_have_the_dtypes_of_the_kernels():
    (sent,) = after(given()).graph.find_nodes(op="call_function", target=exchange.DISPATCH)
    (back,) = sent.graph.find_nodes(op="call_function", target=exchange.COMBINE)
    assert [node.meta["val"].dtype for node in (sent.args[1], back.args[2])] == [torch.int32, torch.float32]
    assert sent.args[2:] == back.args[5:] == (RANKS * OWN, RANKS, "dp")


@pytest.mark.parametrize(
    ("inputs", "target", "options", "says"),
    [
        (given(), Target("npu"), {}, "target.soc does not say Ascend910_93"),
        (given(), Target("npu", soc="Ascend910B"), {}, "target.soc does not say Ascend910_93"),
        (given(dtype=torch.float32), A3, {}, "the kernels send halves"),
        (given(width=512), A3, {}, "512 numbers in a row, the kernels take 1024 to 7168"),
        (given(width=8192), A3, {}, "8192 numbers in a row"),
        (given(tokens=513), A3, {}, "513 tokens, the kernels take 512"),
        (given(chosen=17, experts=32), A3, {"own": 16}, "17 experts of a token, the kernels take 1 to 16"),
        (given(), A3, {"own": 300}, "600 experts, the kernels take 1 to 512"),
        (given(), A3, {"ranks": 500, "own": 1}, "500 ranks, the kernels take 2 to 384"),
        (given(), A3, {"fault": "sums twice"}, "than where the rows of its experts end"),
        (given(), A3, {"fault": "reads the others"}, "than where the rows of its experts end"),
    ],
)
def test_what_the_kernels_do_not_take_is_left(caplog, inputs, target: Target, options, says: str):
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        found = targets(after(inputs, target, **options))
    assert says in caplog.text and DISPATCH not in found and "air.route_tokens.default" in found


@pytest.mark.parametrize(
    "choose",
    [
        lambda scores, k: scores.topk(k, -1)[1].to(torch.int32),
        lambda scores, k: scores.topk(k, 1, False, False)[1].clone(),
    ],
)
def test_places_of_scores_are_never_alike(choose):
    assert DISPATCH in targets(after(given(), choose=choose))


@pytest.mark.parametrize(
    "choose",
    [
        lambda scores, k: scores[:, :k].to(torch.int64),  # a table says
        lambda scores, k: scores.topk(k, -1)[1].masked_fill(scores[:, :k] < 0.1, RANKS * OWN),  # sometimes none
        lambda scores, k: scores.topk(k, -1)[1] // 2,
        lambda scores, k: scores.topk(k, -1)[1].to(torch.int8),  # of many experts two would be one
        lambda scores, k: scores.topk(k, -1)[1].to(torch.bfloat16).long(),
        lambda scores, k: scores.t().contiguous().topk(k, 0)[1].t(),
        lambda scores, k: scores[:, :-1].topk(k, -1)[1],  # of which the numbers may be those of others
        lambda scores, k: scores.flatten().topk(k * scores.shape[0])[1].view(-1, k),
    ],
)
def test_a_token_that_may_have_an_expert_twice_or_none_is_left(caplog, choose):
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        assert DISPATCH not in targets(after(given(), choose=choose))
    assert "may hold an expert twice, or none" in caplog.text


def test_what_is_no_such_layer_is_left():
    assert DISPATCH not in targets(after(given(), fault="another reduction"))
    assert DISPATCH not in targets(after(given(), limit=0))


def test_a_program_exchanges_along_one_axis(caplog):
    def both(x, scores, weights, first_expert):
        chosen = highest(scores, CHOSEN)
        once = layer(x, chosen, weights, first_expert)[0]
        return layer(once, chosen, weights, first_expert, axis="tp")

    module = trace(both, *given())
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        exchange_tokens.run(module, Edits("exchange_tokens", A3))
    assert targets(module).count(DISPATCH) == 1 and "all meet the same ranks: those of dp" in caplog.text


@pytest.mark.parametrize("chosen", [2, 3])  # of two experts that a rank has
def test_a_program_for_atlas_a3_answers_as_the_original(tmp_path: Path, chosen: int):
    program = read_program(aotair.build(routed.exchanged_recipe(chosen, dp=2), tmp_path / "a.aotair"))
    assert collectives(program) == dict.fromkeys(EXCHANGED, 1)
    assert "npu::npu_grouped_matmul" in {op.name for op in program.ops}
    assert program.requirements.soc == "Ascend910_93" and expert_buffers(program) == {0: 200}


@pytest.mark.parametrize("name", ["qwen3_moe", *map(long, ("mixtral", "olmoe", "deepseek_v3", "gpt_oss", "glm4_moe"))])
def test_mixtures_of_transformers_send_their_tokens_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(exchange_tokens, "_WIDTHS", (1, 7168))  # which the host's kernels know nothing of
    recipe = mixture(name) | {"mesh": {"dp": 2}, "parallel": {"*.experts": "expert_dispatch"}}
    recipe |= {"target": A3_RECIPE, "buckets": {"batch": [2], "seq": [8]}, "verify": {"atol": 5e-2, "rtol": 5e-2}}
    recipe["model"] |= {"dtype": "float16"}
    program = read_program(aotair.build(recipe, tmp_path / "a.aotair"))
    met = collectives(program)
    assert {*met} == EXCHANGED and len({*met.values()}) == 1


def test_weights_of_other_tokens_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A planted fault: the sums of a token take the weights of another."""
    plain = exchange_tokens._as

    def turned(node, dtype, write):
        made = plain(node, dtype, write)
        return write.call(torch.ops.aten.flip.default, made, [0]) if dtype == torch.float32 else made

    monkeypatch.setattr(exchange_tokens, "_as", turned)
    with pytest.raises(ProofError):
        aotair.build(routed.exchanged_recipe(dp=2), tmp_path / "a.aotair")

"""Mixtures of experts of transformers: built with shapes that stay as they are, with the numbers of transformers' own
loop over experts."""

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import long
from mixtures import CONFIGS, OWN_FORM, Experts, Mixture, ops, recipe

import aotair
from aotair.errors import ModelError
from aotair.hf.experts import experts_forward, serve
from aotair.ops.experts import combine_tokens, route_tokens
from aotair_runtime.weights.golden import replay_golden

# Of each kind one: plain ones, a shared expert and groups, biases.
DEFAULT = {"qwen3_moe", "deepseek_v3", "gpt_oss"}
ALIKE = {"mixtral", "olmoe", "qwen3_moe", "granitemoe"}  # their layers are all of one kind


@pytest.mark.parametrize("name", [name if name in DEFAULT else long(name) for name in sorted(CONFIGS)])
def test_every_mixture_builds_and_gives_the_numbers_of_the_loop_over_experts(name, tmp_path):
    layers = 1 if name in ALIKE else 2
    path = aotair.build(recipe(name, layers=layers), tmp_path / "x.aotair")
    assert {op.partition("::")[0] for op in ops(path)} <= {"aten", "air"}
    assert ("air::grouped_mm.out" in ops(path)) == (name not in OWN_FORM)
    model, reference = aotair.load(path, enable_output_clone=True), Mixture(name, experts="eager", layers=layers)
    for batch, seq in ((1, 3), (2, 4), (2, 7), (1, 8)):  # padded, and not
        ids, mask = torch.randint(0, 64, (batch, seq)), torch.ones(batch, seq, dtype=torch.int64)
        with torch.no_grad():
            want = reference(ids, mask)
        torch.testing.assert_close(model(ids, mask), want, rtol=1e-4, atol=1e-5 * want.abs().max().item())


@pytest.mark.parametrize("name", ["mixtral", *map(long, ("granitemoe", "deepseek_v2", "deepseek_v3", "gpt_oss"))])
def test_for_an_npu_every_part_of_a_mixture_is_one_of_its_ops(name, tmp_path):
    asked = recipe(name, layers=1) | {"target": {"device": "npu"}, "verify": {"atol": 5e-2, "rtol": 5e-2}}
    asked["model"] |= {"dtype": "float16"}
    path = aotair.build(asked, tmp_path / "x.aotair")
    found = ops(path)
    assert {op for op in found if "moe" in op or "grouped" in op} == {
        GATES[name],
        "npu::npu_moe_init_routing_v2",
        "npu::npu_grouped_matmul",
        "npu::npu_moe_token_unpermute",
    }
    assert not {op for op in found if op.startswith("air::") or "topk" in op}
    with aotair.load(path, device="cpu") as model:
        assert all(result.within for result in replay_golden(model))


GATES = {
    "mixtral": "npu::npu_moe_gating_top_k_softmax",
    "granitemoe": "npu::npu_moe_gating_top_k_softmax_v2",
    "gpt_oss": "npu::npu_moe_gating_top_k_softmax_v2",
    "deepseek_v2": "npu::npu_moe_gating_top_k",
    "deepseek_v3": "npu::npu_moe_gating_top_k",
}


def test_another_checkpoint_is_loaded_as_a_fresh_build_of_it_would_be(tmp_path):
    checkpoint = tmp_path / "model.safetensors"
    other = Mixture("qwen3_moe", seed=1, layers=1)
    safetensors.torch.save_file(dict(other.state_dict()), checkpoint)
    asked = recipe("qwen3_moe", layers=1)
    model = aotair.load(aotair.build(asked, tmp_path / "first.aotair"), enable_output_clone=True)
    asked["model"] |= {"weights": str(checkpoint)}
    fresh = aotair.load(aotair.build(asked, tmp_path / "second.aotair"), enable_output_clone=True)
    ids, mask = torch.randint(0, 64, (2, 5)), torch.ones(2, 5, dtype=torch.int64)
    before = model(ids, mask)
    model.load_weights(checkpoint)
    assert torch.equal(model(ids, mask), fresh(ids, mask)) and not torch.equal(before, fresh(ids, mask))


# ---- the form alone --------------------------------------------------------------------------------------------------

ROUTINGS = st.integers(1, 6).flatmap(
    lambda number: st.tuples(
        st.just(number),
        st.integers(1, min(3, number)).flatmap(
            lambda k: st.lists(
                st.lists(st.integers(0, number - 1), min_size=k, max_size=k, unique=True), min_size=1, max_size=7
            )
        ),
    )
)


@settings(max_examples=80, deadline=None)
@given(routing=ROUTINGS, transposed=st.booleans())
def test_every_routing_gives_the_sum_over_a_tokens_experts(routing, transposed):
    number, chosen = routing
    module, experts = Experts(number, transposed), torch.tensor(chosen)
    x, weights = torch.randn(len(chosen), 5), torch.rand(experts.shape)
    with torch.no_grad():
        got = experts_forward(module, x, experts, weights)
        first, last = (
            getattr(module, name).double().mT if transposed else getattr(module, name).double()
            for name in ("gate_up_proj", "down_proj")
        )
        want = torch.zeros(len(chosen), 5, dtype=torch.float64)
        for token, own in enumerate(chosen):
            for place, expert in enumerate(own):
                both = first[expert] @ x[token].double() + module.gate_up_proj_bias[expert].double()
                inner = torch.tanh(both[:4]) * both[4:]
                made = last[expert] @ inner + module.down_proj_bias[expert].double()
                want[token] += weights[token, place].double() * made
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(routing=ROUTINGS, whole=st.sampled_from([torch.int32, torch.int64]))
def test_rows_lie_in_the_order_of_experts_and_then_of_tokens(routing, whole):
    number, chosen = routing
    experts, x = torch.tensor(chosen, dtype=whole), torch.arange(len(chosen)).float()[:, None]
    rows, places, ends = route_tokens(x, experts, number)
    in_order = sorted((expert, token) for token, own in enumerate(chosen) for expert in own)
    assert rows.flatten().tolist() == [token for _, token in in_order]
    assert [int(rows[place]) for place in places] == [token for token, own in enumerate(chosen) for _ in own]
    assert ends.tolist() == [sum(expert <= last for expert, _ in in_order) for last in range(number)]
    assert (places.dtype, ends.dtype) == (torch.int32, torch.int64)
    meta = torch.ops.air.route_tokens(x.to("meta"), experts.to("meta"), number)
    assert [(one.shape, one.dtype) for one in meta] == [(one.shape, one.dtype) for one in (rows, places, ends)]
    back = combine_tokens(rows, places, torch.ones(experts.shape))
    assert torch.equal(back, x * experts.shape[1])


@pytest.mark.parametrize("shapes", [((3,), (3, 2)), ((3, 4), (3,)), ((1, 3, 4), (3, 2))])
def test_tokens_of_another_rank_are_refused(shapes):
    x, experts = torch.zeros(shapes[0], device="meta"), torch.zeros(shapes[1], dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match=r"takes x \(tokens, width\) and experts \(tokens, k\)"):
        torch.ops.air.route_tokens(x, experts, 4)


def test_weights_in_float32_of_half_rows_are_not_rounded_before_the_sum():
    rows, places = torch.tensor([[1.0], [3.0]]).half(), torch.tensor([0, 1], dtype=torch.int32)
    weights = torch.tensor([[1 / 3, 2 / 3]])
    got = combine_tokens(rows, places, weights)
    assert got.dtype == torch.float16 and got.item() == torch.tensor(7 / 3).half().item()


def test_equal_scores_go_to_the_experts_that_topk_says():
    scores = torch.zeros(5, 4)
    weights, experts = scores.softmax(-1).topk(2)
    module = Experts(4, False)
    with torch.no_grad():
        got = experts_forward(module, torch.randn(5, 5, generator=torch.Generator().manual_seed(0)), experts, weights)
    assert got.isfinite().all() and experts.unique(dim=0).shape[0] == 1


def test_experts_of_several_processes_are_refused():
    module = Experts(2, False)
    module._is_expert_parallel = True
    with pytest.raises(ModelError, match="several processes"):
        experts_forward(module, torch.zeros(1, 5), torch.tensor([[0]]), torch.ones(1, 1))


def test_serve_says_whether_there_are_experts_that_it_serves():
    for name in ("mixtral", *OWN_FORM):
        assert serve(Mixture(name).model) == (name not in OWN_FORM)
    assert not serve(torch.nn.Linear(2, 2))

"""Experts of a user's own module: on ranks of their own where it knows of these, and else whole, which is said."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aotair
from aotair.errors import ModelError
from aotair.prove.prove import all_on_host
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.confine.op_table import Allowed

IDS = {"ids": {"shape": ["n"], "dtype": "int64", "range": [0, 24], "pad": "any"}}


class Experts(nn.Module):
    def __init__(self, *, knows: bool):
        super().__init__()
        self.num_experts, self.weight = 4, nn.Parameter(torch.randn(4, 16, 16) / 4)
        if knows:
            self.register_buffer("first_expert", None)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        first = getattr(self, "first_expert", None)
        made = torch.zeros_like(x)
        for number in range(self.num_experts):
            share = weights * (chosen == (number if first is None else first + number))
            made = made + x @ self.weight[number] * share.sum(-1, keepdim=True)
        return made


class Mixture(nn.Module):
    def __init__(self, *, knows: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.gate, self.experts = nn.Embedding(24, 16), nn.Linear(16, 4), Experts(knows=knows)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return x + self.experts(x, chosen, weights)


def built(path: Path, model: nn.Module, mesh: dict[str, int], parallel: dict[str, str]) -> Path:
    return aotair.build(model=model, out=path, inputs=IDS, buckets={"n": [1, 6]}, mesh=mesh, parallel=parallel)


@pytest.mark.parametrize(
    ("mesh", "style"), [({"ep": 2}, "expert"), ({"ep": 4}, "expert"), ({"dp": 2}, "expert_dispatch")]
)
def test_experts_that_know_of_ranks_are_shared_out(tmp_path: Path, mesh: dict[str, int], style: str):
    model, ids = Mixture(), torch.tensor([3, 1, 23, 7, 7])
    path = built(tmp_path / "a.aotair", model, mesh, {"experts": style})
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([ids])[0], model(ids), atol=1e-5, rtol=1e-5)
    assert model.experts.num_experts == 4 and model.experts.first_expert is None


@pytest.mark.parametrize(
    ("knows", "parallel", "says"),
    [
        (False, {"experts": "expert"}, "experts: Experts knows of no ranks: it has no buffer first_expert"),
        (True, {"gate": "expert"}, "gate: Linear has no experts, of which num_experts is the number"),
    ],
)
def test_what_does_not_know_of_ranks_stays_whole(tmp_path: Path, knows: bool, parallel: dict[str, str], says: str):
    with pytest.raises(ModelError) as caught:
        built(tmp_path / "a.aotair", Mixture(knows=knows), {"ep": 2}, parallel)
    assert says in caught.value.got


def test_a_style_for_nothing_is_refused_by_its_module(tmp_path: Path):
    with pytest.raises(aotair.AotairError, match=r"parallel\.experts: wrong value"):
        built(tmp_path / "a.aotair", Mixture(), {"ep": 2}, {"experts": None})

"""The style `sequence`: each rank makes some rows, and the answers are the original's, at sizes that ranks divide or
not."""

from pathlib import Path

import pytest
import torch
from cases import ROOT
from marks import long
from met import collectives
from row_models import IDS, PLAN, Blocks
from torch import Tensor, nn

import aotair
from aotair.errors import ModelError, ProofError
from aotair.parallel.plan import own_plan
from aotair.prove.prove import all_on_host
from aotair.recipe.read import read_recipe
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.schema import Axis


def built(path: Path, model: nn.Module, ranks: int = 2, **other: object) -> Path:
    asked = {"inputs": IDS, "buckets": {"batch": [1, 3], "seq": [1, 5, 8]}, "parallel": PLAN, "mesh": {"tp": ranks}}
    return aotair.build(model=model, out=path, **(asked | other))


def answers(path: Path, ids: Tensor) -> Tensor:
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        return ranks.entry_points["forward"].flat([ids])[0]


@pytest.mark.parametrize("ranks", [2, long(3), 4])
def test_answers_are_the_originals_at_every_size(tmp_path: Path, ranks: int):
    model = Blocks(nn.RMSNorm)
    plan = PLAN if ranks != 3 else {"*norm": "sequence"}  # of which 16 is no multiple
    path = built(tmp_path / "a.aotair", model, ranks, parallel=plan)
    for sizes in ((1, 1), (1, 2), (1, 7), (2, 3), (3, 5), (3, 8)):
        ids = torch.randint(32, sizes, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(answers(path, ids), model(ids), atol=1e-5, rtol=1e-5)


def test_every_sum_is_scattered(tmp_path: Path):
    program = read_program(built(tmp_path / "a.aotair", Blocks(), buckets={"batch": [2], "seq": [8]}))
    assert collectives(program) == {"air::reduce_scatter": 3, "air::all_gather": 3}


def test_on_npus_products_beside_rows_are_one_kernel_with_what_the_ranks_exchange(tmp_path: Path):
    model, sizes = Blocks(width=256).half(), {"batch": [1, 3], "seq": [1, 43]}
    path = built(tmp_path / "a.aotair", model, target={"device": "npu"}, buckets=sizes)
    fused = {"npu::npu_mm_reduce_scatter_base": 2, "npu::npu_all_gather_base_mm": 2}
    # What is left: the sum of the table's parts, and the rows of the last norm.
    assert collectives(read_program(path)) == fused | {"air::reduce_scatter": 1, "air::all_gather": 1}
    model.float()
    for size in ((1, 1), (1, 7), (2, 43), (3, 43)):
        ids = torch.randint(32, size, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(answers(path, ids).float(), model(ids), atol=1e-2, rtol=1e-2)


def test_the_program_has_one_graph_for_all_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="aotair"):
        built(tmp_path / "a.aotair", Blocks())
    assert "not one graph for all buckets" not in caplog.text


class OverTime(nn.Module):
    """What a row becomes depends on others."""

    def __init__(self, width: int):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(-2, keepdim=True)


def test_a_module_that_mixes_rows_is_refused_by_the_proof(tmp_path: Path):
    with pytest.raises(ProofError, match="is not the original model's"):
        built(tmp_path / "a.aotair", Blocks(OverTime), buckets={"batch": [1], "seq": [8]}, inputs=_without_padding())


def _without_padding() -> dict:
    return {"ids": {key: value for key, value in IDS["ids"].items() if key != "pad"}}


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(input=x + self.down(x))


def test_a_tensor_may_be_given_by_name(tmp_path: Path):
    rows = {"x": {"shape": ["n", 3, 16], "dtype": "float32", "pad": "any"}}
    plan = {"down": "rowwise_of_all", "norm": "sequence"}
    program = read_program(built(tmp_path / "a", ByName(), inputs=rows, buckets={"n": [2]}, parallel=plan))
    assert collectives(program) == {"air::reduce_scatter": 1, "air::all_gather": 1}


class Named(nn.LayerNorm):
    def __init__(self, width: int):
        super().__init__(width)
        self.rank_number = 3


def test_a_module_whose_names_are_taken_stays_whole(tmp_path: Path):
    program = read_program(built(tmp_path / "a.aotair", Blocks(Named), buckets={"batch": [2], "seq": [8]}))
    assert collectives(program)["air::reduce_scatter"] == 1  # before the last norm


@pytest.mark.parametrize(
    "parallel, said",
    [
        ({"blocks": "stages", "blocks.0.norm": "sequence"}, "one alone has some style within"),
        ({"blocks": "stages", "blocks.?": "sequence"}, "a style of its own"),
        ({"blocks": "stages", "*norm": "sequence@pp"}, "along the axis of the stages"),
    ],
)
def test_styles_that_do_not_fit_stages_are_refused(tmp_path: Path, parallel: dict, said: str):
    with pytest.raises(ModelError, match=said):
        built(tmp_path / "a.aotair", Blocks(), mesh={"pp": 2, "tp": 2}, parallel=parallel)


def test_stages_whose_norms_are_made_by_rows(tmp_path: Path):
    model = Blocks()
    path = built(tmp_path / "a.aotair", model, mesh={"pp": 2, "tp": 2}, parallel=PLAN | {"blocks": "stages"})
    ids = torch.randint(32, (3, 5), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(answers(path, ids), model(ids), atol=1e-5, rtol=1e-5)


def test_norms_are_fused_on_npus_as_they_are_without(tmp_path: Path):
    asked = {"buckets": {"batch": [2], "seq": [8]}, "target": {"device": "npu"}}
    program = read_program(built(tmp_path / "a.aotair", Blocks(nn.RMSNorm).half(), **asked))
    assert any("npu_add_rms_norm" in op.name for op in program.ops)


class Two(nn.LayerNorm):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Two(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)[0]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Bilinear(16, 16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, x * 2)


@pytest.mark.parametrize("model", [Pair, Gated])
def test_what_takes_or_gives_other_things_is_refused(tmp_path: Path, model: type[nn.Module]):
    rows = {"x": {"shape": ["n", 16], "dtype": "float32", "pad": "any"}}
    with pytest.raises(ModelError, match="sequence is for modules that make each row"):
        built(tmp_path / "a", model(), inputs=rows, buckets={"n": [2, 3]}, parallel={"norm": "sequence"})


def test_a_model_whose_own_plan_says_so(tmp_path: Path):
    model = Blocks()
    model._tp_plan = {"words": "embedding_rowwise", "blocks.*.norm": "sequence_parallel", "norm": "sequence_parallel"}
    found = {one.name: one.style for one in own_plan(model, (Axis("tp", 2),))}
    assert found["norm"] == found["blocks.0.norm"] == "sequence" and found["words"] == "vocabulary"
    program = read_program(built(tmp_path / "a.aotair", model, parallel="auto", buckets={"batch": [2], "seq": [8]}))
    assert collectives(program)["air::reduce_scatter"] == 1


# Sums: of the table, of the attention but that of DeepSeek, which its plan leaves whole, and of what follows it.
@pytest.mark.parametrize("name, sums", [("llama", 3), long("qwen3", 3), long("deepseek_v3", 2)])
def test_a_language_model_keeps_its_rows_between_all_its_blocks(tmp_path: Path, name: str, sums: int):
    changes = (
        "model.kwargs.layers=1",
        "mesh={tp: 2}",
        "parallel={'*': auto, '*layernorm': sequence, '*model.norm': sequence}",
        "entry_points.prefill.buckets={batch: [2], seq: [8]}",
        "entry_points.decode.buckets={batch: [2]}",
    )
    path = aotair.build(read_recipe(ROOT / "recipes" / f"{name}.yaml", changes), tmp_path / "a.aotair")
    program = read_program(path)
    met = collectives(program)
    assert "air::all_reduce" not in met
    assert met["air::reduce_scatter"] == sums

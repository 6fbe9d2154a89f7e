"""What a build for several ranks shares out, what it proves, and what it refuses."""

from pathlib import Path

import pytest
import torch
from cases import MODELS, RECIPES, SHARES_ITSELF
from met import collectives
from mixtures import recipe as mixture
from models import Shared

import aotair
from aotair.builder import build_with_summary, debug
from aotair.debugger.search import Asked
from aotair.emit.constants import DistinctTensors
from aotair.errors import ModelError, ProofError, RecipeError, UnsupportedError
from aotair.model.load import load_model
from aotair.parallel import styles
from aotair.parallel.split import split
from aotair.prove.prove import all_on_host, on_host
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Listener
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.schema import Axis, GroupArg, Shard

STYLES = RECIPES["shared"]["parallel"]


def answers(path: Path, tensors: list[torch.Tensor]) -> torch.Tensor:
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        return ranks.entry_points["forward"].flat(tensors)[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_style_gives_the_numbers_of_the_original(tmp_path: Path, ranks: int):
    recipe = RECIPES["shared"] | {"mesh": {"tp": ranks}}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    program = read_program(path)
    shards = {constant.name: constant.shard for constant in program.constants if constant.shard is not None}
    assert shards["up.weight"] == shards["up.bias"] == shards["embed.weight"] == Shard(0, 0, ranks)
    assert shards["down.weight"] == Shard(0, 1, ranks) and "down.bias" not in shards and "norm" not in shards
    assert collectives(program) == {"air::all_reduce": 3, "air::all_gather": 1}
    ids = torch.randint(24, (2, 4), generator=torch.Generator().manual_seed(3))
    model = load_model(job_of(parse_recipe(recipe | {"mesh": {}, "parallel": "auto"})))
    torch.testing.assert_close(answers(path, [ids]), model(ids), atol=1e-5, rtol=1e-5)
    groups = [arg for item in program.instructions for arg in item.args if isinstance(arg, GroupArg)]
    assert set(groups) == {GroupArg(0)}


def test_the_weights_file_is_that_of_one_rank(tmp_path: Path):
    sizes = []
    for ranks in (1, 4):
        path = aotair.build(RECIPES["shared"] | {"mesh": {"tp": ranks}}, tmp_path / f"{ranks}.aotair")
        sizes.append((path / "weights.safetensors").stat().st_size)
    few_numbers = 2 * 3 * 8 + 400  # of each rank's place, and names
    assert sizes[1] - sizes[0] <= few_numbers


def test_a_tied_head_is_cut_once(tmp_path: Path):
    recipe = RECIPES["shared"] | {"model": {"factory": f"{MODELS}:Shared", "kwargs": {"tied": True}}}
    program = read_program(aotair.build(recipe, tmp_path / "a.aotair"))
    names = [name for constant in program.constants for group in constant.names for name in group]
    assert names.count("embed.weight") == names.count("head.weight") == 1


def test_what_is_equal_on_the_first_rank_alone_is_kept_apart():
    """Two tables of other lengths begin at row 0 on rank 0, and at others on rank 1."""
    model = torch.nn.ModuleDict({"a": torch.nn.Embedding(8, 4), "b": torch.nn.Embedding(16, 4)})
    shared = split(model, (Axis("tp", 2),), {"a": "vocabulary", "b": "vocabulary"}, "here")
    stored = DistinctTensors(parts=shared.parts)
    first = [stored.name_of(f"{name}.first_row", getattr(shared.model, name).first_row) for name in ("a", "b")]
    assert first == ["a.first_row", "b.first_row"]
    assert [stored.tensor(name).tolist() for name in first] == [[0, 4], [0, 8]]


def test_weights_computed_of_parts_are_those_of_each_rank(tmp_path: Path):
    """A cast is folded away before any call: its value differs from rank to rank."""

    class Cast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.linear(x, self.up.weight.double().float() * 2, self.up.bias)
            return self.down(torch.relu(y))

    torch.manual_seed(2)
    model, x = Cast().eval(), torch.randn(3, 8)
    inputs = {"x": {"shape": [3, 8], "dtype": "float32"}}
    parts = {"mesh": {"tp": 2}, "parallel": {"up": "colwise", "down": "rowwise"}}
    path = aotair.build(model=model, name="cast", out=tmp_path / "a.aotair", inputs=inputs, **parts)
    program = read_program(path)
    derived = [constant for constant in program.constants if constant.kind == "derived"]
    assert derived and all(constant.shard == Shard(0, 0, 2) for constant in derived)
    torch.testing.assert_close(answers(path, [x]), model(x), atol=1e-5, rtol=1e-5)


def test_one_build_and_the_next_give_the_same_bytes(tmp_path: Path):
    one, two = (aotair.build(RECIPES["shared"], tmp_path / f"{n}.aotair") for n in range(2))
    for file in ("program.msgpack", "weights.safetensors", "golden.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()


# ---- what the proof catches ----------------------------------------------------------------------------------------


def build(tmp_path: Path, parallel: dict[str, str]) -> Path:
    return aotair.build(RECIPES["shared"] | {"parallel": parallel}, tmp_path / "wrong.aotair")


def test_a_layer_whose_parts_nobody_puts_together_is_refused(tmp_path: Path):
    with pytest.raises((ProofError, aotair.AotairError)):
        build(tmp_path, STYLES | {"head": "colwise"})
    assert not list(tmp_path.iterdir())


FAULTS = {
    "a sum that is left out": (styles.Summed, lambda self, x: torch.nn.functional.linear(x, self.weight, self.bias)),
    "a bias that each rank adds": (
        styles.Summed,
        lambda self, x: torch.ops.air.all_reduce(
            torch.nn.functional.linear(x, self.weight, self.bias), "sum", self.place.name
        ),
    ),
    "a maximum for a sum": (
        styles.Summed,
        lambda self, x: (
            torch.ops.air.all_reduce(torch.nn.functional.linear(x, self.weight), "max", self.place.name) + self.bias
        ),
    ),
    "rows of other ranks that are not masked": (
        styles.LookedUp,
        lambda self, ids: torch.ops.air.all_reduce(
            torch.nn.functional.embedding((ids - self.first_row).clamp(0, self.weight.shape[0] - 1), self.weight),
            "sum",
            self.place.name,
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_between_ranks_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    kind, forward = FAULTS[fault]
    monkeypatch.setattr(kind, "forward", forward)
    with pytest.raises(ProofError):
        build(tmp_path, STYLES)


def test_ranks_that_answer_differently_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rank 0 is right, and the others are not."""
    forward = styles.Gathered.forward

    def own(self, x):
        made = forward(self, x)
        return made + self.rank_number * 1e-3

    def cuts(module, place, units):
        yield from styles._gathered(module, place, units)
        yield styles._number(place)

    monkeypatch.setattr(styles.Gathered, "forward", own)
    monkeypatch.setitem(styles.STYLES, "gathered", styles.Style(cuts, styles.Gathered))
    with pytest.raises(ProofError, match="the ranks answer differently"):
        build(tmp_path, STYLES)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_cut_evenly_stays_whole_with_the_reason():
    """16 and 24 are cut into 3 where both layers that feed each other can be."""
    shared = split(Shared(width=16), (Axis("tp", 3),), STYLES, "here")
    assert shared.kept == {"of_all": "16 inputs, for 3 ranks"}
    assert shared.styles == {"vocabulary": 1, "colwise": 1, "rowwise": 1, "gathered": 1}
    with pytest.raises(ModelError, match="over so many ranks") as caught:
        split(Shared(), (Axis("tp", 5),), {"up": "colwise", "down": "rowwise"}, "here")
    assert "the model: 24 outputs, for 5 ranks" in caught.value.got


@pytest.mark.parametrize(
    ("parts", "error", "text"),
    [
        ({"mesh": {"pp": 2}}, ModelError, "has no axis"),
        ({"mesh": {}}, RecipeError, "add mesh"),
        ({"parallel": {"up": "sideways"}}, ModelError, "no such style or axis"),
        ({"parallel": {"nothing": "colwise"}}, ModelError, "no module of the model has such a name"),
        ({"parallel": {"up": "colwise@ep"}}, ModelError, "no such style or axis"),
        ({"parallel": "auto"}, ModelError, "nothing of the model is shared out"),
        ({"mesh": {"ep": 2}}, ModelError, "has no axis"),
    ],
)
def test_a_wrong_recipe(tmp_path: Path, parts: dict, error: type, text: str):
    with pytest.raises(error, match=text):
        aotair.build(RECIPES["shared"] | parts, tmp_path / "a.aotair")


def test_an_artifact_of_several_ranks_is_not_looked_into_as_one(tmp_path: Path):
    path = aotair.build(RECIPES["shared"], tmp_path / "a.aotair")
    with pytest.raises(UnsupportedError, match="several ranks"):
        on_host(open_artifact(path), Allowed())


def test_like_is_refused(tmp_path: Path):
    path = aotair.build(RECIPES["shared"], tmp_path / "a.aotair")
    with pytest.raises(RecipeError, match="several ranks"):
        aotair.build(RECIPES["shared"], tmp_path / "b.aotair", like=path)


def test_the_report_says_how_many_ranks_there_are(tmp_path: Path):
    path = aotair.build(RECIPES["shared"], tmp_path / "a.aotair")
    assert "2 ranks (tp=2) run it and share" in (path / "report.html").read_text()


def test_a_recipe_with_a_mesh_is_not_debugged():
    with pytest.raises(UnsupportedError, match="ranks share out"):
        debug(RECIPES["shared"], Asked())


class Gated(torch.nn.Module):
    """Attention whose heads have a number each, the first four of `rows`, that no plan names."""

    def __init__(self, rows: int = 4):
        super().__init__()
        self.head_dim = 8
        self.q_proj, self.o_proj = torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(32, 16, bias=False)
        self.sinks = torch.nn.Parameter(torch.rand(rows))

    def forward(self, x):
        return self.o_proj((self.q_proj(x).view(-1, 4, 8) * self.sinks[:4, None]).flatten(1))


class Layers(torch.nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.attention, self.up, self.down = Gated(rows), torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.attention(x))))

    def split_states(self, parts):
        self(torch.zeros(2, 16))
        return {}


PATTERNS = {"attention.q_proj": "colwise", "attention.o_proj": "rowwise", "up": "colwise", "down": "rowwise"}


def test_heads_with_something_beside_them_stay_whole_with_the_reason():
    shared = split(Layers(4), (Axis("tp", 2),), PATTERNS, "here")
    assert shared.kept == {"attention": "sinks has a row for each head, and no style"}
    assert set(shared.parts) == {"up.weight", "up.bias", "down.weight"}
    on_all = 2 * 16 * 32 + 4 + 16  # both projections, sinks, the bias that is added once
    assert shared.weights() == (4 * (on_all + 16 * (16 + 1 + 16)), 4 * on_all)


def test_a_model_that_cannot_be_called_in_parts_is_refused_in_words():
    with pytest.raises(ModelError, match="cannot be called as ranks share it out") as caught:
        split(Layers(6), (Axis("tp", 2),), PATTERNS, "here")
    assert "test_shared_out.py" in str(caught.value) and caught.value.got.startswith("RuntimeError: ")


@pytest.mark.parametrize("parts", [{}, {"parallel": "model", "model": {"factory": f"{MODELS}:SharesItself"}}])
def test_one_rank_is_no_mesh(tmp_path: Path, parts: dict):
    recipe = RECIPES["shared"] | {"mesh": {"dp": 1, "tp": 1}} | parts
    if parts:
        recipe |= {"inputs": SHARES_ITSELF["inputs"], "buckets": SHARES_ITSELF["buckets"]}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    assert read_program(path).mesh == () and not collectives(read_program(path))
    aotair.load(path).close()


def test_experts_are_apart_where_a_plan_for_them_alone_says_so(tmp_path: Path):
    summary = build_with_summary(mixture("gpt_oss", layers=1) | {"mesh": {"ep": 2}}, tmp_path / "a.aotair", Listener())
    assert summary.shared_out is not None and summary.shared_out.styles == {"expert": 1}
    shards = {c.name.rpartition(".")[2]: c.shard for c in read_program(tmp_path / "a.aotair").constants}
    assert shards["gate_up_proj"] == shards["down_proj_bias"] == Shard(0, 0, 2)

"""One artifact for several meshes: what a recipe may say, what is stored once, and what the commands say of it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cases import SHARES_ITSELF
from click.testing import CliRunner
from safetensors import safe_open
from several_meshes import DEEP, MESHES, ROUNDED, SHARED, built, over

import aotair
from aotair.builder import build_with_summary, debug, explain, plan, plans
from aotair.cli import main
from aotair.debugger.search import Asked as AskedOfDebugger
from aotair.errors import RecipeError
from aotair.prove.prove import all_on_host
from aotair.recipe.read import parse_recipe
from aotair.summary import Listener
from aotair_runtime.artifact.asked import Asked, asked_for
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact, read_golden, read_program, read_programs
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import RankError, WeightsError
from aotair_runtime.format.mesh import mesh_text, sizes_of


@pytest.fixture(scope="module")
def several(common_folder: Path) -> Path:
    return built(common_folder, SHARED, MESHES)


def stored(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path / "weights.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict


def nbytes(path: Path) -> int:
    return sum(tensor.nbytes for tensor in stored(path).values())


# ---- the recipe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ([], "at least 1 item"),
        ([{}, {"tp": 1}], "there twice, as one rank"),
        ([{"tp": 2}, {"tp": 2}], "mesh: {tp: 2} is there twice"),
        ([{"tp": 2}, {"tp": 2, "dp": 1}], "mesh: {tp: 2} is there twice"),
        (({"tp": 2}, {"tp": 4}), "should be a valid list"),
        ([{}, {"tp": 0}], r"mesh\[1\].tp: wrong value"),
        ([{}, {"TP": 2}], r"mesh\[1\].TP"),
        ([{}, "tp"], r"mesh\[1\]: wrong value"),
        ([{"tp": number} for number in range(2, 19)], "at most 16 items"),
        ([{}, {"a": 1 << 9, "b": 1 << 9}], "at most 65536 ranks"),
    ],
)
def test_what_a_list_of_meshes_may_not_say(mesh: list, says: str):
    with pytest.raises(RecipeError, match=says):
        parse_recipe(SHARED | {"mesh": mesh})


def test_parallel_needs_a_mesh_of_several_ranks():
    with pytest.raises(RecipeError, match="add mesh"):
        parse_recipe(SHARED | {"mesh": [{}]})


def test_meshes_with_the_same_ranks_along_other_axes_are_several():
    assert len(parse_recipe(SHARED | {"mesh": [{"tp": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"tp": 4}]}).meshes) == 3


def test_a_list_of_one_mesh_is_that_mesh(tmp_path: Path, common_folder: Path):
    path = aotair.build(over(SHARED, [{"tp": 2}]), tmp_path / "a.aotair")
    alone = built(common_folder, SHARED, {"tp": 2})
    for name in ("weights.safetensors", "golden.safetensors"):
        assert (path / name).read_bytes() == (alone / name).read_bytes()
    assert not read_program(path).beside.meshes


# ---- what is stored --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_each_program_is_that_of_its_mesh_alone(several: Path, common_folder: Path):
    for program, mesh in zip(read_programs(several), MESHES, strict=True):
        alone = read_program(built(common_folder, SHARED, mesh))
        assert program.mesh == alone.mesh
        for field in ("ops", "layouts", "instructions", "arena", "prologue", "reserve", "tolerance", "unread"):
            assert getattr(program, field) == getattr(alone, field), field
        assert [entry.buckets for entry in program.entry_points] == [entry.buckets for entry in alone.entry_points]
        assert [(c.dtype, c.shape, c.shard, c.names) for c in program.constants] == [
            (c.dtype, c.shape, c.shard, c.names) for c in alone.constants
        ]


def test_golden_tensors_and_weights_are_there_once(several: Path, common_folder: Path):
    alone = built(common_folder, SHARED, {})
    ranks = sum(tensor.nbytes for name, tensor in stored(several).items() if "rank" in name or "first_row" in name)
    assert nbytes(several) == nbytes(alone) + ranks and ranks == 2 * (2 + 4) * 8
    want = {name: tensor.tolist() for name, tensor in read_golden(open_artifact(alone)).items()}
    for mesh in MESHES:
        found = read_golden(open_artifact(several, asked=asked_for(mesh)))
        assert {name: tensor.tolist() for name, tensor in found.items()} == want
    assert sorted(file.name for file in several.glob("golden*")) == ["golden.safetensors"]


@pytest.mark.parametrize("meshes", [MESHES, MESHES[::-1], MESHES[1:]], ids=str)
def test_weights_that_are_computed_of_others_are_there_once(meshes: list, common_folder: Path):
    """Of a layer that is cut by its inputs, ranks compute columns of what one rank computes."""
    several, alone = built(common_folder, ROUNDED, meshes), built(common_folder, ROUNDED, {})
    computed = {name: tensor for name, tensor in stored(several).items() if name.endswith("weight:to_copy")}
    want = {name: stored(alone)[name] for name in ("up.weight:to_copy", "down.weight:to_copy")}
    assert computed.keys() == want.keys() and all(torch.equal(computed[name], want[name]) for name in want)
    shards = {(c.name, c.shard.dim) for p in read_programs(several) for c in p.constants if c.name in want and c.shard}
    assert shards == {("up.weight:to_copy", 0), ("down.weight:to_copy", 1)}
    assert nbytes(several) <= nbytes(alone) + 4 * 256, "the bias that ranks add after their sum, in float32"
    assert (several / "weights.safetensors").stat().st_size <= 1.02 * (alone / "weights.safetensors").stat().st_size


def test_layers_of_stages_are_there_once_and_a_rank_reads_its_own_in_the_file(common_folder: Path):
    meshes = [{"pp": 2}, {}, {"pp": 4}]
    several, alone = built(common_folder, DEEP, meshes), built(common_folder, DEEP, {})
    assert nbytes(several) <= nbytes(alone) + 200, "the numbers of ranks"
    for rank in range(4):
        artifact = open_artifact(several, rank, asked_for({"pp": 4}))
        names = {c.name: n for n, c in enumerate(artifact.program.constants)}
        at = names["layers.0+1+2+3.up.weight"]
        assert torch.equal(artifact.constants[at], stored(alone)[f"layers.{rank}.up.weight"])
        assert at in artifact.in_file
    for mesh in meshes:
        here, alone = open_artifact(several, asked=asked_for(mesh)), open_artifact(built(common_folder, DEEP, mesh))
        with all_on_host(here, Allowed()) as model, all_on_host(alone, Allowed()) as other:
            ids = torch.randint(24, (1, 4), generator=torch.Generator().manual_seed(1))
            for _ in range(2):
                (got,), (want,) = (one.entry_points["forward"].flat([ids]) for one in (model, other))
                assert torch.equal(got, want)


def test_states_that_meshes_cut_otherwise_have_golden_tensors_of_their_own(common_folder: Path):
    several = built(common_folder, DEEP, [{"pp": 2}, {}, {"pp": 4}])
    assert sorted(file.name for file in several.glob("golden*")) == [
        "golden.0.safetensors", "golden.1.safetensors", "golden.2.safetensors", "golden.safetensors",
    ]  # fmt: skip
    for mesh in ({"pp": 2}, {}, {"pp": 4}):
        found = read_golden(open_artifact(several, asked=asked_for(mesh)))
        want = read_golden(open_artifact(built(common_folder, DEEP, mesh)))
        assert found.keys() == want.keys() and all(torch.equal(found[name], want[name]) for name in want)


def test_the_same_recipe_gives_the_same_bytes(several: Path, tmp_path: Path):
    again = aotair.build(over(SHARED, MESHES), tmp_path / "again.aotair")
    files = sorted(file.relative_to(several) for file in several.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(again) for file in again.rglob("*") if file.is_file())
    assert all((several / file).read_bytes() == (again / file).read_bytes() for file in files)


def test_every_instruction_is_known_to_come_from_somewhere(several: Path):
    for mesh in MESHES:
        artifact = open_artifact(several, asked=asked_for(mesh))
        made = read_debug_data(artifact).made
        assert len(made) == len(artifact.program.instructions) and any("models.py" in one.line for one in made)


def test_the_pages_of_each_mesh_lead_to_the_others(several: Path):
    first = (several / "report.html").read_text()
    assert "This is the program for 1 rank" in first and 'href="report/tp=2/report.html"' in first
    second = (several / "report" / "tp=2" / "report.html").read_text()
    assert 'href="../../report.html"' in second and 'href="../tp=4/report.html"' in second
    assert (several / "report" / "tp=2" / "report" / "forward.html").is_file()


# ---- which one is meant ----------------------------------------------------------------------------------------------


def test_a_program_that_is_not_there_is_refused_with_those_that_are(several: Path):
    with pytest.raises(RankError, match="no program for the mesh") as caught:
        open_artifact(several, asked=asked_for({"tp": 8}))
    assert caught.value.expected == "1 rank; tp=2; tp=4" and caught.value.got == "the mesh tp=8"
    with pytest.raises(RankError, match="no program for 3 ranks"):
        open_artifact(several, asked=Asked(ranks=lambda: 3))
    with pytest.raises(RankError, match="no program for the mesh"):
        aotair.load(several, mesh={"dp": 2})


def test_a_model_that_shares_itself_out_is_built_whole_too(tmp_path: Path):
    meshes = [{}, {"tp": 2}]
    path = aotair.build(SHARES_ITSELF | {"mesh": meshes}, tmp_path / "a.aotair")
    x = torch.randn(2, 16)
    answers = []
    for mesh in meshes:
        with all_on_host(open_artifact(path, asked=asked_for(mesh)), Allowed()) as model:
            answers += model.entry_points["forward"].flat([x.clone()])
    torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-5)


def test_a_model_that_is_there_already_is_built_for_several_meshes(tmp_path: Path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    inputs = {"input": {"shape": ["n", 8], "dtype": "float32", "pad": 0}}
    parts = {"inputs": inputs, "buckets": {"n": [1, 4]}, "mesh": MESHES, "parallel": {"0": "colwise", "2": "rowwise"}}
    path = aotair.build(model=model, name="given", out=tmp_path / "a.aotair", **parts)
    x = torch.randn(3, 8)
    for mesh in MESHES:
        with all_on_host(open_artifact(path, asked=asked_for(mesh)), Allowed()) as served:
            torch.testing.assert_close(served.entry_points["forward"].flat([x])[0], model(x), atol=1e-5, rtol=1e-5)
    assert nbytes(path) == sum(parameter.nbytes for parameter in model.parameters())


def test_the_only_mesh_may_be_named_and_no_other(common_folder: Path):
    alone = built(common_folder, SHARED, {"tp": 2})
    assert mesh_text(read_program(alone, asked_for({"tp": 2})).mesh) == "tp=2"
    with pytest.raises(RankError, match="no program for the mesh"):
        read_program(alone, asked_for({}))


@pytest.mark.long
def test_of_several_meshes_of_one_size_somebody_says_which(tmp_path: Path):
    meshes = [{"tp": 2}, {"dp": 2, "tp": 1}, {}]
    path = aotair.build(over(SHARED, meshes), tmp_path / "a.aotair")
    with pytest.raises(RankError, match="several programs for 2 ranks") as caught:
        open_artifact(path, asked=Asked(ranks=lambda: 2))
    assert "tp=2; dp=2, tp=1" in caught.value.expected and "load(mesh={'tp': 2})" in caught.value.fix
    for mesh in meshes:
        program = open_artifact(path, asked=asked_for(mesh)).program
        assert sizes_of(program.mesh) == mesh


# ---- the build and the commands --------------------------------------------------------------------------------------


def test_a_build_tells_of_each_mesh_and_counts_all_buckets(tmp_path: Path):
    heard = list[tuple[str, int, int]]()

    class Heard(Listener):
        def stage(self, name: str) -> None:
            self.name = name

        def bucket(self, done: int, total: int) -> None:
            heard.append((self.name, done, total))

    summary = build_with_summary(over(SHARED, MESHES), tmp_path / "a.aotair", Heard())
    assert [one.mesh for one in summary.meshes] == ["1 rank", "tp=2", "tp=4"] and summary.shared_out is None
    assert [one.shared_out is None for one in summary.meshes] == [True, False, False]
    assert summary.buckets == 6 and summary.arena == max(one.arena for one in summary.meshes)
    proved = [(done, total) for name, done, total in heard if name == "prove"]
    assert proved == sorted(proved) and proved[-1] == (12, 12)


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("== ")]


def test_inspect_and_plan_show_all_meshes_or_the_one_that_is_asked_for(several: Path, tmp_path: Path):
    recipe = tmp_path / "recipe.json"  # which is YAML too
    recipe.write_text(json.dumps(over(SHARED, MESHES)))
    for arguments in (("inspect", several), ("inspect", several, "--weights"), ("plan", several), ("plan", recipe)):
        text = command(*arguments)
        assert headings(text) == ["== 1 rank ==", "== tp=2 ==", "== tp=4 =="], text
        one = command(*arguments, "--mesh", "tp=4")
        assert not headings(one) and one.strip().splitlines()[-1] in text
    assert "for 4 ranks together (tp=4)" in command("inspect", several, "--mesh", "tp=4")
    assert "for 1 rank" in command("inspect", several, "--mesh", "tp=1").splitlines()
    assert [one["mesh"] for one in json.loads(command("inspect", several, "--json"))][1] == [{"name": "tp", "size": 2}]
    assert len(json.loads(command("plan", several, "--json"))) == 3
    assert json.loads(command("plan", several, "--json", "--mesh", "tp=2"))["nbytes"] > 0
    assert "no program for the mesh" in command("inspect", several, "--mesh", "tp=3", code=1)
    for wrong in ("tp", "tp=x", "=2", "tp=0"):
        assert "give axes and numbers of ranks" in command("inspect", several, "--mesh", wrong, code=2)


def test_what_runs_on_one_rank_takes_its_program_and_says_so(several: Path, tmp_path: Path):
    others = "the program for 1 rank; the artifact has others: tp=2; tp=4"
    for arguments in (("verify", several), ("bench", several, "--seconds", 0), ("diff", several, several)):
        assert others in command(*arguments)
    assert "2 ranks together" in command("verify", several, "--mesh", "tp=2", code=1)
    assert "1 calls" not in command("profile", several, "--calls", 1)
    assert "answers" not in command("diff", several, several, "--mesh", "tp=2")
    ids = tmp_path / "ids.npz"
    import numpy

    numpy.savez(ids, ids=numpy.zeros((1, 4), dtype=numpy.int64))
    assert "output: float32[1, 4, 24]" in command("run", several, ids)


def test_diff_compares_a_program_with_that_of_its_mesh_alone(several: Path, common_folder: Path):
    text = command("diff", several, built(common_folder, SHARED, {"tp": 2}), "--mesh", "tp=2", "--json")
    found = json.loads(text[text.index("{") :])
    assert not found["weights"] or "added" not in found["weights"]


def test_doctor_says_of_which_mesh_it_speaks(several: Path, common_folder: Path):
    assert "this process; other meshes: tp=2; tp=4" in command("doctor", several)
    assert "torchrun --nproc-per-node 4 starts them; other meshes: 1 rank; tp=2" in command(
        "doctor", several, "--mesh", "tp=4"
    )
    only_ranks = built(common_folder, ROUNDED, MESHES[1:])
    assert "2: tp=2" in command("doctor", only_ranks)
    assert "other meshes" not in command("doctor", built(common_folder, SHARED, {"tp": 2}))


def test_commands_that_look_at_one_mesh_say_how_to_choose_it(several: Path, common_folder: Path, tmp_path: Path):
    recipe = over(SHARED, MESHES)
    looks: Sequence = (plan, explain, lambda recipe: debug(recipe, AskedOfDebugger(None, None, None, None, None)))
    for look in looks:
        with pytest.raises(RecipeError, match="one mesh at a time") as caught:
            look(recipe)
        assert caught.value.got == "1 rank; tp=2; tp=4" and "--set" in caught.value.fix
    assert [mesh_text(program.mesh) for program in plans(recipe)] == ["1 rank", "tp=2", "tp=4"]
    with pytest.raises(RecipeError, match="made anew"):
        aotair.build(recipe, tmp_path / "x.aotair", like=several)
    only_ranks = built(common_folder, ROUNDED, MESHES[1:])
    assert "no program for 1 rank" in command("debug", only_ranks, code=1)
    assert "no program for 1 rank" in command("verify", only_ranks, code=1)


def test_weights_come_from_the_program_of_the_same_mesh(several: Path, common_folder: Path, tmp_path: Path):
    x = torch.randint(24, (1, 4))
    recipe = over(SHARED, MESHES) | {"model": SHARED["model"] | {"kwargs": {"tied": True}}}
    other = aotair.build(recipe, tmp_path / "tied.aotair")
    moved = Path(shutil.copytree(several, tmp_path / "moved.aotair"))
    with aotair.load(several, enable_output_clone=True) as model:
        before = model(x)
        model.load_weights(moved)
        assert torch.equal(model(x), before)
        model.load_weights(built(common_folder, SHARED, {}))
        assert torch.equal(model(x), before)
        with pytest.raises(WeightsError):
            model.load_weights(other)

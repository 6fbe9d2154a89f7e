"""What a build promises of memory: `aotair plan`, budgets in the recipe, and what ops allocate beside the arena."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from cases import RECIPES
from click.testing import CliRunner

import aotair
from aotair.builder import plan
from aotair.cli import main
from aotair.errors import RecipeError
from aotair.promise import promised, refuse_over_budget
from aotair.recipe.read import parse_recipe
from aotair.recipe.target_part import TargetPart
from aotair_runtime.artifact.open import read_program
from aotair_runtime.devices.allocators import ALLOCATORS
from aotair_runtime.errors import MemoryBudgetError
from aotair_runtime.memory.promise import Terms, promise
from aotair_runtime.memory.sizes import fresh_bytes

GIB = 1 << 30


def with_target(name: str, **target: object) -> dict:
    return RECIPES[name] | {"target": target}


def written(tmp_path: Path, recipe: dict) -> str:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    return str(file)


def test_a_recipe_and_its_artifact_say_the_same(built, tmp_path):
    for name in ("encoder", "counter"):
        texts = [
            CliRunner().invoke(main, ["plan", where]).stdout
            for where in (written(tmp_path, RECIPES[name]), str(built(name)))
        ]
        assert texts[0] == texts[1]
        for words in ("weights", "arena", "in all", "lower bound", "host memory is allocated as promised"):
            assert words in texts[0]


def test_the_numbers_for_scripts(built):
    found = json.loads(CliRunner().invoke(main, ["plan", str(built("encoder")), "--json"]).stdout)
    program = read_program(built("encoder"))
    items = {item["name"]: item["nbytes"] for item in found["items"]}
    assert items["arena"] == program.arena and found["nbytes"] == sum(items.values())
    assert [need["height"] for need in found["needs"]] == [b.height for b in program.entry_points[0].buckets]
    assert {row["op"] for row in found["beside_the_arena"]} <= {op.name for op in program.ops}


def test_plan_wants_one_thing(tmp_path):
    assert CliRunner().invoke(main, ["plan"]).exit_code == 2
    assert CliRunner().invoke(main, ["plan", "x", "--intervals", "y"]).exit_code == 2
    done = CliRunner().invoke(main, ["plan", str(tmp_path / "nothing.yaml")])
    assert done.exit_code == 1 and "there is no such recipe" in done.stderr


# ---- budgets -------------------------------------------------------------------------------------------------------


def test_a_budget_is_kept_or_the_build_refuses(tmp_path):
    peak = promised(plan(RECIPES["encoder"])).peak
    aotair.build(with_target("encoder", memory_budget=peak), tmp_path / "a.aotair")
    assert read_program(tmp_path / "a.aotair").requirements.memory_budget == peak
    with pytest.raises(MemoryBudgetError) as caught:
        aotair.build(with_target("encoder", memory_budget=peak - 1), tmp_path / "b.aotair")
    text = str(caught.value)
    assert "(target.memory_budget)" in text and "1 too many" in text and "build without the bucket" in text
    assert not (tmp_path / "b.aotair").exists()
    done = CliRunner().invoke(main, ["plan", written(tmp_path, with_target("encoder", memory_budget=peak - 1))])
    assert done.exit_code == 1 and "in all" in done.stdout and "1 too many" in done.stderr


def test_a_share_is_checked_where_the_device_is_known(tmp_path):
    peak = promised(plan(RECIPES["encoder"])).peak
    target = {"memory_budget": 0.5, "device_memory": 2 * peak - 2}
    with pytest.raises(MemoryBudgetError, match=r"50% of target\.device_memory"):
        aotair.build(with_target("encoder", **target), tmp_path / "a.aotair")
    with pytest.raises(MemoryBudgetError, match=r"\(target\.device_memory\)"):
        aotair.build(with_target("encoder", device_memory=peak - 1), tmp_path / "a.aotair")
    aotair.build(with_target("encoder", memory_budget="1%"), tmp_path / "a.aotair")
    assert read_program(tmp_path / "a.aotair").requirements.memory_share == 0.01
    aotair.load(tmp_path / "a.aotair").close()
    aotair.build(with_target("encoder", memory_budget=1e-12), tmp_path / "b.aotair")
    with pytest.raises(MemoryBudgetError, match="the recipe's memory_budget"):
        aotair.load(tmp_path / "b.aotair")
    aotair.load(tmp_path / "b.aotair", memory_budget=GIB).close()


@pytest.mark.parametrize("text, nbytes", [("24GiB", 24 * GIB), ("1.5 KiB", 1536), ("7", 7), ("2MB", 2_000_000)])
def test_bytes_may_have_a_unit(text, nbytes):
    assert parse_recipe(with_target("linear", memory_budget=text)).target.memory_budget == nbytes


@pytest.mark.parametrize("text", ["much", "3 parsecs", 1.5, -1, True, "120%", "", [1]])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(RecipeError, match=r"target\.memory_budget"):
        parse_recipe(with_target("linear", memory_budget=text))


# ---- what the promise counts ---------------------------------------------------------------------------------------


def test_ops_without_an_out_variant_are_counted():
    program = plan(RECIPES["encoder"])
    (entry,) = program.entry_points
    for bucket in entry.buckets:
        names = {program.ops[item.op].name for item in bucket.fresh}
        assert "aten::layer_norm" in names
        assert fresh_bytes(bucket) == max(item.nbytes for item in bucket.fresh)
    batch, seq, width = 4, 16, 16
    assert fresh_bytes(entry.buckets[-1]) == batch * seq * width * 4


def test_options_change_the_promise():
    program = plan(RECIPES["encoder"])
    plain = promise(program, Terms("npu"))
    amounts = lambda p: {item.name: item.nbytes for item in p.items}  # noqa: E731
    apart = amounts(promise(program, Terms("npu", apart=True)))
    assert apart["arena"] == sum(-(-need.height // 64) * 64 for need in plain.needs)
    kept = amounts(promise(program, Terms("npu", output_clone=True)))
    assert sum(kept.values()) - plain.nbytes == max(need.outputs for need in plain.needs)
    assert amounts(promise(program, Terms("npu", arena_there=program.arena)))["arena"] == 0
    assert amounts(promise(program, Terms("npu", arena_there=program.arena - 1)))["arena"] == program.arena
    meanwhile = ALLOCATORS["npu"].reserved(plain.warm_up) + ALLOCATORS["npu"].reserved(plain.aside)
    assert plain.peak == plain.reserved + meanwhile > plain.nbytes


def test_states_are_copied_while_warming_up():
    """A step that writes a state works on a copy of it then, which the promise counts."""
    program = plan(RECIPES["counter"])
    state = sum(item.nbytes for item in promise(program, Terms("npu")).items if item.name == "state")
    assert state == 512 and promise(program, Terms("npu")).warm_up == 4
    assert promise(program, Terms("cpu")).warm_up == 0
    cache = plan(RECIPES["cache"])
    assert promise(cache, Terms("npu")).warm_up >= 2 * 8 * 3 * 4


def test_what_the_recipe_reserves_is_part_of_it():
    program = plan(with_target("linear", device="npu", workspace="1MiB", reserve=5))
    amounts = {item.name: item.nbytes for item in promised(program).items}
    assert amounts["workspaces of kernels"] == 1 << 20 and amounts["reserve for the device"] == 5
    assert plan(with_target("linear", device="cuda")).reserve.workspace == 32 << 20


def test_buffers_of_communicators_are_part_of_it_where_their_size_is_said():
    recipe = RECIPES["shared"] | {"mesh": {"dp": 2, "tp": 2}}
    for said, nbytes in ((None, 0), ("16MiB", 2 * 2 * 16 << 20)):  # two axes, two buffers each
        program = plan(recipe | {"target": {"device": "npu", "hccl_buffer": said}})
        amounts = {item.name: item.nbytes for item in promised(program).items}
        assert amounts["buffers of communicators"] == nbytes
        assert not {item.name: item.nbytes for item in promise(program, Terms("cpu")).items}["buffers of communicators"]
    alone = plan(with_target("linear", device="npu", hccl_buffer="16MiB"))
    assert {item.name: item.nbytes for item in promised(alone).items}["buffers of communicators"] == 0


# ---- the recipe's budget ---------------------------------------------------------------------------------------------


def needs(**parts) -> TargetPart:
    return TargetPart(**parts)


@pytest.fixture(scope="module")
def linear():
    return plan(RECIPES["linear"])


def test_a_promise_is_made_for_the_programs_own_device_and_options(linear):
    assert promised(linear) == promise(linear, Terms("cpu"))
    apart = replace(linear, options=replace(linear.options, disable_mempool_reuse_in_same_fx=True))
    assert promised(apart) == promise(linear, Terms("cpu", apart=True))
    cloned = replace(linear, options=replace(linear.options, enable_output_clone=True))
    assert promised(cloned) == promise(linear, Terms("cpu", output_clone=True))
    npu = replace(linear, requirements=replace(linear.requirements, device="npu"))
    assert promised(npu).kind == "npu"


@pytest.mark.parametrize(
    ("parts", "whose"),
    [
        (lambda peak: {"memory_budget": peak - 1}, "target.memory_budget"),
        (lambda peak: {"device_memory": peak - 1}, "target.device_memory"),
        (lambda peak: {"memory_budget": 0.5, "device_memory": 2 * peak - 2}, "50% of target.device_memory"),
        (lambda peak: {"memory_budget": peak - 1, "device_memory": 10 * peak}, "target.memory_budget"),
    ],
)
def test_one_byte_too_many_is_refused_by_whose_budget_it_is(linear, parts, whose):
    peak = promised(linear).peak
    with pytest.raises(MemoryBudgetError) as caught:
        refuse_over_budget(linear, needs(**parts(peak)), "here")
    assert f"({whose})" in str(caught.value) and caught.value.where == "here"


@pytest.mark.parametrize(
    "parts",
    [
        lambda peak: {},
        lambda peak: {"memory_budget": peak},
        lambda peak: {"device_memory": peak},
        lambda peak: {"memory_budget": 0.5, "device_memory": 2 * peak},
        lambda peak: {"memory_budget": 1e-9},  # of a device that nobody knows
    ],
)
def test_what_is_within_or_not_known_is_let_through(linear, parts):
    refuse_over_budget(linear, needs(**parts(promised(linear).peak)), "here")


# ---- the memory of a reload ----------------------------------------------------------------------------------------


class Wide(torch.nn.Module):
    """Weights of which one is normed and one merged, before any call."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.rand(256, 256, dtype=dtype) for _ in range(4))
        self.register_buffer("steps", torch.zeros(1, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        normed = self.weights[2] / self.weights[2].norm(dim=1, keepdim=True)
        x = torch.relu(torch.nn.functional.linear(x, self.weights[0]))
        return torch.nn.functional.linear(x, torch.cat([normed, self.weights[3]])) + self.weights[1].sum() * self.steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_reload_takes_of_the_host_is_promised(tmp_path: Path, dtype):
    x = {"shape": [4, 256], "dtype": str(dtype).removeprefix("torch.")}
    path = aotair.build(model=Wide(dtype), out=tmp_path / "m.aotair", inputs={"x": x}, verify={"atol": 9, "rtol": 9})
    safetensors.torch.save_file(Wide(dtype).state_dict(), tmp_path / "w.safetensors")
    with aotair.load(path) as model:
        said, pages = model.promise.reload, sum(c.numel() * c.element_size() for c in model._resident.constants)
        with torch.profiler.profile(profile_memory=True) as profile:
            model.load_weights(tmp_path / "w.safetensors")
        assert f"{said:,}" in str(model.promise)
    mapped = (tmp_path / "w.safetensors").stat().st_size  # what the profiler counts of the file is no memory
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes() if abs(event.nbytes()) != mapped else 0
        peak = max(peak, live)
    assert 0.7 * (said - pages) <= peak <= said - pages + (16 << 10)  # golden tensors

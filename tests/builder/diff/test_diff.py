"""Differences of artifacts: nothing where there is none, of a changed line that line alone, whatever is numbered, named
and placed anew by it; and weights, plans, proofs and sizes by their values."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import RECIPES, ROOT
from click.testing import CliRunner
from marks import long

import aotair
from aotair.cli import main
from aotair.diff.diff import PARTS, Diff, diff
from aotair.diff.fail_on import conditions
from aotair.diff.flow import Source, flow_of, meanings
from aotair.diff.graphs import Side, flow_changes
from aotair.diff.page import page
from aotair.diff.text import text
from aotair.recipe.read import read_recipe
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Form, Instruction, Layout, Op, Placement, Space, TensorArg

MODEL = """
import torch


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        y = torch.relu(self.up(y))
        y = y * 2.0
        return x + self.down(y)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(8) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        first = x.sin()
        second = x.cos()
        return first, second
"""
SCALED, RELU, SUM, SINE = "y = y * 2.0", "y = torch.relu(self.up(y))", "return x + self.down(y)", "first = x.sin()"


def artifact(folder: Path, name: str, source: str = MODEL, **parts: object):
    """The artifact of a model written as text."""
    path = folder / name / "model.py"
    path.parent.mkdir()
    path.write_text(source)
    recipe = {
        "name": "model",
        "model": {"factory": f"{path}:Model"},
        "inputs": {"x": {"shape": ["n", 8], "dtype": "float32", "pad": "any"}},
        "buckets": {"n": [1, 4]},
        **parts,
    }
    return open_artifact(aotair.build(recipe, folder / name / "model.aotair"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diff")


@pytest.fixture(scope="module")
def first(folder: Path):
    return artifact(folder, "first")


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("encoder", "counter", "decoder_layer", "shared") else long(n)
        for n in RECIPES
        if n not in ("decode", "npu_block", "ascend_decode")
    ],
)
def test_two_builds_of_one_recipe_do_not_differ(name: str, built, tmp_path: Path):
    again = aotair.build(RECIPES[name], tmp_path / "again.aotair")
    found = diff(open_artifact(built(name)), open_artifact(again))
    assert found.is_empty, text(found)
    assert text(found).endswith("no difference")


def line_numbers(source: str, line: str) -> set[str]:
    return {f"model.py:{number}, in forward" for number, text in enumerate(source.split("\n"), 1) if line in text}


@pytest.mark.parametrize(
    ("old", "new", "kind", "before", "after"),
    [
        (SCALED, "y = y * 3.0", "changed", ["aten::mul"], ["aten::mul"]),
        (SCALED, "y = y - 2.0", "changed", ["aten::mul"], ["aten::sub"]),
        (SCALED, "pass", "removed", ["aten::mul"], []),
        (RELU, "y = torch.tanh(self.up(y))", "changed", ["aten::relu"], ["aten::tanh"]),
        (SUM, "return x - self.down(y)", "changed", ["aten::add"] * 3, ["aten::sub"] * 3),
    ],
)
def test_of_one_changed_line_its_ops_alone_are_told(
    old: str, new: str, kind: str, before: list, after: list, first, folder: Path
):
    source = MODEL.replace("class Block", "# A comment.\n# Another.\n\n\nclass Block").replace(old, new)
    name = f"changed {new}".replace("/", "")
    found = diff(first, artifact(folder, name, source))
    assert [change.kind for change in found.graphs] == [kind], text(found)
    (change,) = found.graphs
    assert [call.computes for call in change.before] == before and [call.computes for call in change.after] == after
    assert {call.line for call in change.before} <= line_numbers(MODEL, old)
    assert {call.line for call in change.after} <= line_numbers(source, new)
    assert change.modules == tuple(f"blocks.{number}" for number in range(3))
    blocks = max(len(before), len(after))  # one change in each, or one of all three
    assert change.buckets == ("forward: n=1", "forward: n=4") and change.times * blocks == 6
    assert not found.weights and not found.interface and not found.buckets


def test_a_new_line_is_told_alone(first, folder: Path):
    source = MODEL.replace(SCALED, f"{SCALED}\n        y = y.exp()")
    found = diff(first, artifact(folder, "added", source))
    assert [(c.kind, [call.computes for call in c.after]) for c in found.graphs] == [("added", ["aten::exp"])]


def test_a_change_in_one_layer_of_three_is_of_that_layer(first, folder: Path):
    source = MODEL.replace("x = block(x)", "x = block(x) if block is not self.blocks[1] else block(x).neg()")
    found = diff(first, artifact(folder, "one layer", source))
    assert [(c.kind, [call.computes for call in c.after]) for c in found.graphs] == [("added", ["aten::neg"])]


def test_what_reads_another_result_is_told(first, folder: Path):
    source = MODEL.replace("return first, second", "return second, first")
    found = diff(first, artifact(folder, "swapped", source))
    assert found.graphs and {change.kind for change in found.graphs} == {"rewired"}
    assert {call.computes for change in found.graphs for call in change.after} == {"return"}


def test_another_order_is_told_as_that(first, folder: Path):
    lines = f"        {SINE}\n        second = x.cos()\n"
    assert lines in MODEL
    source = MODEL.replace(lines, "".join(reversed(lines.splitlines(keepends=True))))
    found = diff(first, artifact(folder, "order", source))
    assert {change.kind for change in found.graphs} == {"moved"}
    assert {call.computes for change in found.graphs for call in change.after} <= {"aten::sin", "aten::cos"}


def test_other_names_and_lines_are_no_difference(first, folder: Path):
    source = MODEL.replace("y = ", "other = ").replace("(y)", "(other)").replace("y * 2", "other * 2")
    source = source.replace("class Block", "# Above.\nclass Block")
    found = diff(first, artifact(folder, "names", source))
    assert not found.graphs and not found.plans and not found.weights, text(found)


@pytest.mark.long
def test_what_is_fused_otherwise_is_told_as_that(folder: Path):
    small = ["entry_points.prefill.buckets={batch: [1], seq: [16]}", "entry_points.decode.buckets={batch: [2]}"]
    found = []
    for name, more in (("fused", []), ("apart", ["config.experimental_config.pattern_fusion_pass=false"])):
        recipe = read_recipe(ROOT / "recipes" / "llama.yaml", [*small, "model.kwargs.layers=2", *more])
        found.append(open_artifact(aotair.build(recipe, folder / f"{name}.aotair")))
    (change,) = diff(*found).graphs
    assert (change.kind, len(change.buckets)) == ("fused", 2)
    assert [call.computes for call in change.before] == ["aten::scaled_dot_product_attention"]
    assert sorted(call.computes for call in change.after) == ["aten::copy", "aten::copy", change.before[0].op]
    assert "group_attention" in change.before[0].passes and "group_attention" not in change.after[0].passes
    assert change.modules == ("model.model.layers.0.self_attn", "model.model.layers.1.self_attn")


# ---- weights, plans, sizes -------------------------------------------------------------------------------------------


def test_changed_weights_are_told_with_how_far(first, folder: Path):
    source = MODEL.replace("for _ in range(3))", "for _ in range(3))\n        self.blocks[1].up.bias.data[3] += 0.5")
    found = diff(first, artifact(folder, "weight", source))
    (change,) = found.weights
    assert (change.name, change.what, change.numbers, change.of) == ("blocks.1.up.bias", "values", 1, 16)
    before = dict(zip((c.name for c in first.program.constants), first.constants))["blocks.1.up.bias"]
    assert change.largest == pytest.approx(0.5, abs=1e-6)
    assert change.relative == pytest.approx(0.5 / float(before.double().norm()), rel=1e-5)
    assert not found.graphs and not found.plans


def test_another_width_is_told_by_shape(first, folder: Path):
    found = diff(first, artifact(folder, "wide", MODEL.replace("2 * width", "3 * width")))
    shapes = {c.name: (c.before, c.after) for c in found.weights if c.what == "shape"}
    assert shapes["blocks.0.up.weight"] == ("float32[16, 8]", "float32[24, 8]") and len(shapes) == 9
    assert {change.kind for change in found.graphs} == {"changed"}
    for change in found.plans:
        assert max(change.steps_before) == change.peak_before.nbytes <= change.before
        assert max(change.steps_after) == change.peak_after.nbytes <= change.after
    assert {change.bucket for change in found.plans} == {"forward: n=1", "forward: n=4"}
    by_name = {amount.name: amount for amount in found.amounts}
    weights = [sum(t.nbytes for t in a.constants) for a in (first, open_artifact(folder / "wide" / "model.aotair"))]
    assert by_name["memory: weights"].after - by_name["memory: weights"].before == pytest.approx(
        weights[1] - weights[0], abs=64 * 15
    )


def test_other_buckets_and_inputs_are_told(first, folder: Path):
    inputs = {"x": {"shape": ["n", 8], "dtype": "float32"}}
    found = diff(first, artifact(folder, "buckets", inputs=inputs, buckets={"n": [4, 9]}))
    assert {fact.name: (bool(fact.before), bool(fact.after)) for fact in found.buckets} == {
        "forward: n=1": (True, False),
        "forward: n=9": (False, True),
    }
    assert "pad any" in found.interface[0].before and "pad None" in found.interface[0].after
    assert not found.graphs


def test_of_two_versions_of_torch_what_changed_is_told(built):
    old = open_artifact(ROOT / "tests" / "artifacts" / "torch2.9" / "encoder")
    found = diff(old, open_artifact(built("encoder")))
    assert "torch 2.9.1" in found.versions[0].before
    norms = [change for change in found.graphs if change.kind == "changed"]
    assert len(norms) == 2 and not found.weights and not found.plans
    for change in norms:
        (before,), (after,) = change.before, change.after
        assert before.op == after.op == "aten::layer_norm"
        assert (before.said.split(", ")[-1], after.said.split(", ")[-1]) == ("True", "False")
    sums = [change for change in found.graphs if change not in norms]  # that write over the other tensor now
    assert [(one.kind, one.before[0].op, one.after[0].op) for one in sums] == [
        ("rewired", "aten::add_.Tensor", "aten::add_.Tensor")
    ] * 2
    assert "models.py:24" in text(found)


# ---- flows -----------------------------------------------------------------------------------------------------------


def test_a_wait_that_is_missing_is_told(built):
    whole = open_artifact(built("streams"))
    side = Side.of(whole.program, read_debug_data(whole))
    (entry,) = whole.program.entry_points
    for bucket in entry.buckets:
        waits = [n for n in bucket.code if whole.program.instructions[n].form == Form.WAIT]
        assert waits
        for wait in waits:
            code = tuple(n for n in bucket.code if n != wait)
            changes = flow_changes(side.flow(entry, bucket), side.flow(entry, replace(bucket, code=code)))
            assert [(change.kind, len(change.before), change.after) for change in changes] == [("waits", 2, ())]


def test_sources_are_the_writes_that_are_left(built):
    """A buffer is written by halves, row by row and whole; each read gets what lies there."""
    whole = open_artifact(built("linear"))
    schemas = {
        "aten::fill_.Scalar": "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)",
        "aten::relu.out": "aten::relu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
    }
    layouts = (
        Layout("float32", (2, 4), (4, 1)),
        Layout("float32", (2, 2), (4, 1)),
        Layout("float32", (4,), (1,)),
    )
    # The whole; its left and its right columns; its rows; a result far away.
    places = [(0, 0), (0, 1), (8, 1), (0, 2), (16, 2), (256, 0), (512, 1), (768, 2)]
    tensors = tuple(Placement(int(Space.ARENA), 0, offset, layout) for offset, layout in places)

    def fill(tensor: int) -> Instruction:
        return Instruction(0, int(Form.EFFECT), (TensorArg(tensor), 1.0), (), (), "fill")

    def read(tensor: int, out: int) -> Instruction:
        return Instruction(1, int(Form.OUT), (TensorArg(tensor),), (), (out,), "read")

    steps = [fill(0), fill(1), fill(2), read(0, 5), read(1, 6), fill(4), read(0, 5), read(3, 7), read(4, 7)]
    (entry,) = whole.program.entry_points
    ops = tuple(Op(name, schema) for name, schema in schemas.items())
    program = replace(whole.program, layouts=layouts, instructions=tuple(steps), ops=ops)
    bucket = replace(entry.buckets[0], tensors=tensors, code=tuple(range(len(steps))), outputs=(), inputs=())
    flow = flow_of(program, entry, bucket, [], DebugData())
    sources = [step.reads[0] for step in flow.steps if step.op == "aten::relu.out"]
    assert sources == [
        (Source(2, 0, -8), Source(1, 0, 0)),  # the halves, and nothing of the whole
        (Source(1, 0, 0),),
        (Source(5, 0, -16), Source(2, 0, -8), Source(1, 0, 0)),
        (Source(2, 0, -8), Source(1, 0, 0)),
        (Source(5, 0, 0),),
    ]
    assert len(set(meanings(flow)[:-1])) == len(steps) - 1  # two fills of one layout compute alike


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(first, folder: Path):
    if not (folder / "other").exists():
        artifact(folder, "other", MODEL.replace(SCALED, "y = y * 3.0").replace("2 * width", "4 * width"))
    paths = [str(folder / name / "model.aotair") for name in ("first", "other")]

    def run(*args: str, status: int = 0):
        done = CliRunner().invoke(main, ["diff", *paths, *args])
        assert done.exit_code == status, done.output
        return done

    return run


def test_the_command_says_all_parts(command, folder: Path):
    done = command("--html", str(folder / "page.html"))
    for part in ("recipe", "graphs", "changed (in blocks.0", "weight", "plan", "proofs", "bytes", "memory: peak"):
        assert part in done.output, part
    written = (folder / "page.html").read_text()
    assert written.startswith("<!doctype html>") and "Content-Security-Policy" in written
    assert written.count("<svg") == 2 and "aten::mul_.Tensor" in written and "<script" not in written


def test_json_has_all_and_can_be_read(command):
    found = json.loads(command("--json").output)
    assert set(PARTS) <= set(found) and found["graphs"] and found["weights"][0]["what"] == "shape"


def test_times_are_compared(command):
    found = json.loads(command("--bench", "--seconds", "0", "--json").output)
    ops = {row["name"]: row for row in found["times"]}
    assert ops["aten::addmm.out"]["before"] > 0 and ops["aten::addmm.out"]["after"] > 0
    assert [row["name"] for row in found["replays"]] and all(row["after"] > 0 for row in found["replays"])


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("any", 1), ("ops", 1), ("weights", 1), ("plans", 1), ("recipe", 1), ("versions", 0), ("interface", 0),
        ("buckets", 0), ("memory", 1), ("memory:+1%", 1), ("memory:+900%", 0), ("memory:+10MiB", 0), ("memory:+1", 1),
        ("size:+1MiB", 0), ("size", 1), ("proof:+10", 0), ("versions,memory:+900%", 0), ("versions, ops", 1),
    ],
)  # fmt: skip
def test_the_status_is_for_checks(command, said: str, status: int):
    done = command("--fail-on", said, status=status)
    assert ("fails: " in done.stderr) == bool(status)


@pytest.mark.parametrize(
    "said", ["", "nothing", "ops:+1%", "memory:1%", "memory:+1 potato", "memory:-1%", "time:+5%", "any,", "proof:+1MiB"]
)
def test_a_condition_that_is_none_is_refused(command, said: str):
    assert "error: --fail-on" in command("--fail-on", said, status=1).output


def test_growth_is_measured_from_what_was():
    found = Diff("a", "b", worst_proof=replace(Diff("", "").worst_proof, before=2.0, after=3.0))
    (grown,) = conditions("proof:+49%", False)
    assert grown.fails(found) and not conditions("proof:+50%", False)[0].fails(found)
    assert not conditions("proof:+1", False)[0].fails(found) and conditions("proof:+0.5", False)[0].fails(found)
    assert not conditions("memory", False)[0].fails(found)


def test_what_cannot_be_compared_is_refused_in_one_sentence(folder: Path, first, tmp_path: Path):
    good = str(first.path)
    cut = tmp_path / "cut.aotair"
    cut.mkdir()
    (cut / "program.msgpack").write_bytes((first.path / "program.msgpack").read_bytes()[:-9])
    for pair in ((good, str(tmp_path / "none")), (str(tmp_path), good), (good, __file__), (good, str(cut))):
        done = CliRunner().invoke(main, ["diff", *pair])
        assert done.exit_code == 1 and done.output.startswith("error: ") and "Traceback" not in done.output
    done = CliRunner().invoke(main, ["diff", good, good, "--html", str(tmp_path / "no" / "page.html")])
    assert done.exit_code == 1 and "cannot be written" in done.output


def test_two_models_that_have_nothing_in_common_are_told_apart(built):
    found = diff(open_artifact(built("encoder")), open_artifact(built("derived")))
    assert {fact.name for fact in found.recipe} >= {"name"} and not found.graphs and not found.plans
    assert {change.what for change in found.weights} == {"added", "removed"}


def test_names_of_others_are_not_obeyed(first):
    found = diff(first, first)
    found = replace(found, before="\x1b[2J<script>", recipe=(replace_fact("<b>\x1b[0m", "a\nb", "c"),))
    assert "\x1b" not in text(found) and "a\\nb" in text(found)
    assert "<script>" not in page(found) and "<b>" not in page(found) and "\x1b" not in page(found)


def replace_fact(*parts: str):
    from aotair.diff.facts import Fact

    return Fact(*parts)


def test_bits_of_weights_are_compared_as_numbers():
    from aotair.diff.weights import _difference

    nan = torch.tensor([1.0, torch.nan, torch.inf])
    assert _difference(nan, nan.clone()) is None
    assert _difference(torch.tensor([0.0, 3.0]), torch.tensor([4.0, 3.0])) == (1, 4.0, pytest.approx(4 / 3))
    assert _difference(torch.tensor([True]), torch.tensor([False])) == (1, 1.0, 1.0)
    assert _difference(torch.tensor([1j]), torch.tensor([2j])) == (1, 1.0, 1.0)


class NothingInIt(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.new_zeros(0, 4), x[:0] * 2]) + 1


def test_tensors_without_numbers_come_from_nothing(tmp_path: Path):
    inputs = {"x": {"shape": [2, 4], "dtype": "float32"}}
    path = aotair.build(None, tmp_path / "a.aotair", model=NothingInIt(), name="empty", inputs=inputs)
    assert diff(open_artifact(path), open_artifact(path)).is_empty

"""The debugger names what was planted: a pass, a weight, an instruction, a kernel, a wait, a list; and finds nothing
where nothing is wrong."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import RECIPES
from click.testing import CliRunner
from safetensors.torch import save_file

import aotair
from aotair.builder import debug
from aotair.cli import main
from aotair.debugger.debug import debug_artifact
from aotair.debugger.finding import Debugged
from aotair.debugger.page import page
from aotair.debugger.races import races
from aotair.debugger.search import Asked
from aotair.debugger.text import text
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices.host_call import HostCall
from aotair_runtime.errors import AotairError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Form, Instruction, Program, Space, TensorArg
from aotair_runtime.snapshot.file import Snapshot, write_snapshot
from aotair_runtime.steps import join

MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        y = torch.tanh(self.up(x)) * 0.5
        y = self.down(y) + self.seen
        self.seen += x.sum(0)
        return x + y


def halved(gm, example_inputs, config):
    for node in gm.graph.nodes:
        if node.target == torch.ops.aten.mul.Tensor:
            node.args = (node.args[0], 0.25)


def forgetful(gm, example_inputs, config):
    for node in list(gm.graph.nodes):
        if node.target == torch.ops.aten.copy_.default:
            gm.graph.erase_node(node)


class Averages(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)
"""
RECIPE = """
name: model
model: {factory: "model.py:Model"}
inputs: {x: {shape: [rows, 8], dtype: float32}}
buckets: {rows: [2, 4]}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "model.yaml").write_text(RECIPE)
    return tmp_path / "model.yaml"


@pytest.fixture
def artifact(recipe: Path, tmp_path: Path) -> Path:
    return aotair.build(recipe, tmp_path / "model.aotair")


def command(*arguments: object):
    return CliRunner().invoke(main, ["debug", *map(str, arguments)], catch_exceptions=False)


def rewritten(path: Path, program: Program) -> None:
    (path / "program.msgpack").write_bytes(codec.dump(program))
    (path / "debug.msgpack").unlink(missing_ok=True)  # it is about the program that was


def instruction(program: Program, op: str) -> tuple[int, Instruction]:
    return next(
        (number, item)
        for number, item in enumerate(program.instructions)
        if not item.is_event and program.ops[item.op].name.startswith(op)
    )


def with_instruction(program: Program, number: int, item: Instruction) -> Program:
    items = program.instructions
    return replace(program, instructions=(*items[:number], item, *items[number + 1 :]))


# ---- nothing wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["encoder", "cache", "counter", "structured", "streams", "npu_block"])
def test_nothing_is_found_where_nothing_is_wrong(name: str):
    found = debug(RECIPES[name], Asked())
    assert all(one.is_right for one in found), text(found[-1])
    forms = [rung.form for rung in found[0].rungs]
    assert forms[0] == "export" and "the program, on the host" in forms and forms[-1].startswith("captured, on")
    assert all(rung.within and rung.units <= 64 for one in found for rung in one.rungs)


def test_a_right_artifact_is_right_alone_and_with_its_recipe(artifact: Path, recipe: Path):
    done = command(artifact)
    assert done.exit_code == 0 and "Nothing is wrong" in done.output
    done = command(artifact, "--recipe", recipe)
    assert done.exit_code == 0 and done.output.count("Nothing is wrong") == 2  # the smallest bucket and the largest


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_a_pass_that_changes_a_number_is_named_with_the_call_and_the_line(recipe: Path):
    done = command(recipe, "--set", "config.post_grad_custom_pre_pass=model.py:halved", "--json")
    (found,) = json.loads(done.output)
    (finding,) = found["findings"]
    assert done.exit_code == 1 and finding["kind"] == "pass" and finding["certain"]
    assert finding["by"] == "post_grad_custom_pre_pass" and "aten.mul.Tensor" in finding["calls"][0]
    assert finding["lines"] == ["model.py:13, in forward"]
    assert finding["apart"]["error"] > 0.01
    assert [point["within"] for point in found["points"]].index(False) == 2  # a product of matrices, tanh, then this


def test_a_pass_that_no_longer_writes_a_state_is_named(recipe: Path):
    done = command(recipe, "--set", "config.post_grad_custom_pre_pass=model.py:forgetful", "--json")
    (finding,) = json.loads(done.output)[0]["findings"]
    assert (finding["kind"], finding["by"]) == ("pass", "post_grad_custom_pre_pass")
    assert "copy_" in finding["calls"][0]


# ---- weights and instructions ----------------------------------------------------------------------------------------


def test_a_weight_of_the_artifact_that_is_not_the_model_s_is_named(recipe: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    other = aotair.build(recipe, tmp_path / "other.aotair")
    (tmp_path / "model.py").write_text(MODEL)
    (found,) = debug(recipe, Asked(), open_artifact(other))
    assert {finding.kind for finding in found.findings} == {"weights"}
    assert {finding.by for finding in found.findings} == {"up.weight", "up.bias", "down.weight", "down.bias"}


def test_an_instruction_with_another_number_is_named(recipe: Path, artifact: Path):
    program = open_artifact(artifact).program
    number, item = instruction(program, "aten::mul")
    args = tuple(0.51 if arg == 0.5 else arg for arg in item.args)
    assert args != item.args
    rewritten(artifact, with_instruction(program, number, replace(item, args=args)))
    found = debug(recipe, Asked(), open_artifact(artifact))[-1]
    (finding,) = found.findings
    assert (finding.kind, finding.certain, finding.calls) == ("instruction", True, (item.node,))
    assert "0.51" in finding.what and "instead of" in finding.what
    assert finding.lines == ("model.py:13, in forward",)


def test_an_artifact_alone_is_told_from_its_golden_outputs(artifact: Path):
    program = open_artifact(artifact).program
    number, item = instruction(program, "aten::mul")
    rewritten(artifact, with_instruction(program, number, replace(item, args=(item.args[0], 0.75))))
    done = command(artifact)
    assert (
        done.exit_code == 1 and "likely: the program gives other numbers" in done.output and "--recipe" in done.output
    )


def test_a_result_that_is_written_elsewhere_is_named(recipe: Path, tmp_path: Path):
    recipe.write_text(RECIPE.replace("[2, 4]", "[2]"))
    artifact = aotair.build(recipe, tmp_path / "model.aotair")
    program = open_artifact(artifact).program
    entry = program.entry_points[0]
    bucket = entry.buckets[0]
    moved = None
    for number in bucket.code:
        item = program.instructions[number]
        if item.form == Form.OUT and len(item.outs) == 1:
            place = bucket.tensors[item.outs[0]]
            other = replace(place, offset=place.offset + 64 if place.offset < 64 else place.offset - 64)
            tensors = (*bucket.tensors, other)
            moved = with_instruction(program, number, replace(item, outs=(len(tensors) - 1,)))
            break
    assert moved is not None
    buckets = (replace(bucket, tensors=tensors, height=max(bucket.height, 4096)),)
    moved = replace(moved, arena=max(moved.arena, 4096), entry_points=(replace(entry, buckets=buckets),))
    rewritten(artifact, moved)
    found = debug(recipe, Asked(bucket="rows=2"), open_artifact(artifact))[-1]
    (finding,) = found.findings
    assert finding.kind == "memory" and finding.certain and item.node in finding.calls


# ---- kernels, streams, lists -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def rounding() -> Iterator[None]:
    """The kernel of `sigmoid.out`, which rounds to bfloat16."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("sigmoid.out", lambda x, *, out: out.copy_(x.sigmoid().bfloat16()), "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


@pytest.mark.filterwarnings("ignore:Warning only once")
def test_a_kernel_that_rounds_otherwise_is_named(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(join, "run", lambda: None)  # else it is no kernel of torch that a replay calls
    (tmp_path / "model.py").write_text(MODEL.replace("torch.tanh(self.up(x))", "torch.sigmoid(x) @ self.up.weight.t()"))
    with rounding():
        found = debug(recipe, Asked())[-1]
    (finding,) = found.findings
    assert (finding.kind, finding.by, finding.certain) == ("kernel", "aten::sigmoid.out", True)


def test_a_wait_that_is_missing_is_named(tmp_path: Path):
    recipe = RECIPES["branches"]
    path = aotair.build(recipe, tmp_path / "a.aotair")
    program = open_artifact(path).program
    entry = program.entry_points[0]
    bucket = entry.buckets[0]
    assert not races(program, bucket)
    waits = [place for place, number in enumerate(bucket.code) if program.instructions[number].form == Form.WAIT]
    named = 0
    for place in waits:
        code = bucket.code[:place] + bucket.code[place + 1 :]
        bad = replace(program, entry_points=(replace(entry, buckets=(replace(bucket, code=code),)),))
        rewritten(path, bad)
        try:
            found = debug_artifact(open_artifact(path), Asked(), Allowed(), lambda rung: None)
        except AotairError:
            continue  # streams that do not fork and join: a load refuses them
        for finding in found.findings:
            assert (finding.kind, finding.certain, len(finding.calls)) == ("wait", True, 2)
        named += bool(found.findings)
    assert named >= 2


def test_a_list_that_is_not_updated_is_named(monkeypatch: pytest.MonkeyPatch):
    own, counts = HostCall.set, dict[int, list]()

    def lose(self: HostCall, lists: list[list[int]]) -> None:
        seen = counts.setdefault(id(self), [self, 0])
        seen[1] += 1
        if seen[1] < 3 or self.node != "fused_infer_attention_score":
            own(self, lists)

    monkeypatch.setattr(HostCall, "set", lose)
    found = debug(RECIPES["ascend_decode"], Asked(bucket="batch=4"))[-1]
    (finding,) = found.findings
    assert (finding.kind, finding.certain, finding.by) == ("list", True, "fused_infer_attention_score")


# ---- calls that somebody made ----------------------------------------------------------------------------------------


def test_a_model_to_which_padding_is_no_matter_of_indifference_is_named(recipe: Path, tmp_path: Path):
    changes = ["--set", 'model.factory="model.py:Averages"', "--set", "inputs.x.pad=0"]
    save_file({"x": torch.randn(3, 8)}, tmp_path / "in.safetensors")
    done = command(recipe, *changes, "--inputs", tmp_path / "in.safetensors")
    assert done.exit_code == 1 and "certain: padding changes what the model itself answers" in done.output


def test_a_snapshot_is_called_from_its_states(recipe: Path, artifact: Path, tmp_path: Path):
    with aotair.load(artifact) as model:
        model(torch.ones(2, 8))
        model.snapshot(tmp_path / "call.safetensors", torch.randn(2, 8))
    done = command(recipe, "--snapshot", tmp_path / "call.safetensors")
    assert done.exit_code == 0 and "the inputs given" in done.output
    done = command(artifact, "--snapshot", tmp_path / "call.safetensors")
    assert done.exit_code == 0 and "captured, on cpu" in done.output


# ---- refusals and pages ----------------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused(recipe: Path, artifact: Path, tmp_path: Path):
    for arguments, said in (
        ((recipe, "--entry", "nothing"), "no such entry point"),
        ((recipe, "--bucket", "rows=77"), "no such bucket"),
        ((artifact, "--bucket", "rows=77"), "no such bucket"),
        ((artifact, "--entry", "nothing"), "no such bucket"),
        ((recipe, "--inputs", tmp_path / "none.safetensors"), "there is no such file"),
        ((tmp_path / "none.yaml",), "none.yaml"),
    ):
        done = command(*arguments)
        assert done.exit_code == 1 and said in done.output, arguments
    snapshot = Snapshot("model", "", "other", "", "", "cpu", "", 0, {"x": torch.ones(2, 8)}, {})
    write_snapshot(tmp_path / "s.safetensors", snapshot)
    assert "no such entry point" in command(recipe, "--snapshot", tmp_path / "s.safetensors").output
    both = command(recipe, "--snapshot", tmp_path / "s.safetensors", "--inputs", "x")
    assert both.exit_code == 2


def test_inputs_that_do_not_fit_are_refused(recipe: Path, artifact: Path, tmp_path: Path):
    for tensors in ({"x": torch.ones(2, 9)}, {"x": torch.ones(9, 8)}, {"y": torch.ones(2, 8)}, {"x": torch.ones(2)}):
        save_file(tensors, tmp_path / "in.safetensors")
        for what in (recipe, artifact):
            done = command(what, "--inputs", tmp_path / "in.safetensors")
            assert done.exit_code == 1 and done.output.startswith("error: "), (tensors, done.output)


def test_the_page_says_the_same_and_obeys_nothing(recipe: Path, tmp_path: Path):
    change = "config.post_grad_custom_pre_pass=model.py:halved"
    done = command(recipe, "--set", change, "--html", tmp_path / "page.html")
    shown = (tmp_path / "page.html").read_text()
    assert done.exit_code == 1 and "post_grad_custom_pre_pass" in shown and "<circle" in shown
    assert "default-src 'none'" in shown and "<script" not in shown
    hostile = page([Debugged("<b>", "<script>", "<i>", "cpu", notes=("<a>",))])
    assert hostile.count("<h2>") == 1 and not any(tag in hostile for tag in ("<b>", "<script>", "<i>", "<a>"))


# ---- what is no fault, or not so surely one --------------------------------------------------------------------------

PAIR = """

def doubled(gm, example_inputs, config):
    _times(gm, 2.0)


def halved_again(gm, example_inputs, config):
    _times(gm, 0.5)


def _times(gm, factor):
    output = gm.graph.output_node()
    (results,) = output.args
    with gm.graph.inserting_before(output):
        made = gm.graph.call_function(torch.ops.aten.mul.Tensor, (results[0], factor))
    output.args = ((made, *results[1:]),)


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(50, 8)

    def forward(self, ids):
        return self.rows(ids) * 2


def clamped(gm, example_inputs, config):
    for node in list(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)):
        with gm.graph.inserting_before(node):
            made = gm.graph.call_function(torch.ops.aten.clamp.default, (node.args[1], 0, 48))
        node.args = (node.args[0], made)
"""


def test_what_a_later_pass_puts_right_is_undone_and_nothing_wrong(recipe: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL + PAIR)
    passes = ["post_grad_custom_pre_pass=model.py:doubled", "post_grad_custom_post_pass=model.py:halved_again"]
    done = command(recipe, *(part for one in passes for part in ("--set", f"config.{one}")))
    assert done.exit_code == 0 and "undone" in done.output and "Nothing is wrong" in done.output, done.output
    done = command(recipe, "--set", f"config.{passes[0]}", "--json")
    (finding,) = json.loads(done.output)[0]["findings"]
    assert finding["by"] == "post_grad_custom_pre_pass" and "aten.mul.Tensor" in finding["calls"][0]


def test_values_at_the_end_of_a_range_are_tried(recipe: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL + PAIR)
    ids = "inputs={ids: {shape: [rows], dtype: int64, range: [0, 50], pad: any}}"
    pair = ["--set", "model.factory=model.py:Table", "--set", ids]
    assert command(recipe, *pair).exit_code == 0
    done = command(recipe, *pair, "--set", "config.post_grad_custom_pre_pass=model.py:clamped", "--bucket", "rows=2")
    assert done.exit_code == 1 and "ids all the greatest" in done.output and "aten.clamp" in done.output, done.output


def test_a_weight_that_is_rounded_otherwise_is_a_note(recipe: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(
        MODEL.replace("self.register", "self.up.weight.data *= 1 + 2**-23\n        self.register")
    )
    other = aotair.build(recipe, tmp_path / "other.aotair")
    (tmp_path / "model.py").write_text(MODEL)
    found = debug(recipe, Asked(), open_artifact(other))
    assert all(one.is_right for one in found)
    assert any("up.weight is rounded otherwise" in note for note in found[0].notes)


def test_an_artifact_of_another_recipe_is_refused(recipe: Path, artifact: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL.replace("32", "16"))
    done = command(artifact, "--recipe", recipe)
    assert done.exit_code == 1 and "error: " in done.output and "of another recipe" in done.output


def test_an_artifact_alone_is_compared_in_every_bucket_with_its_states(artifact: Path):
    program = open_artifact(artifact).program
    entry = program.entry_points[0]
    last = entry.buckets[-1]
    kept = [number for number in last.code if program.instructions[number].node != state_write(program, last)]
    buckets = (*entry.buckets[:-1], replace(last, code=tuple(kept)))
    rewritten(artifact, replace(program, entry_points=(replace(entry, buckets=buckets),)))
    done = command(artifact)
    assert done.exit_code == 1 and "forward, rows=4" in done.output and "WRONG" in done.output


def state_write(program: Program, bucket) -> str:
    """The last instruction of a bucket that writes into a state."""
    states = {n for n, place in enumerate(bucket.tensors) if place.space == Space.STATE}
    items = [program.instructions[number] for number in bucket.code]
    return [item.node for item in items if states & {a.index for a in item.args[:1] if isinstance(a, TensorArg)}][-1]


def test_options_that_would_do_nothing_are_refused(recipe: Path, artifact: Path):
    assert command(artifact, "--set", "name=x").exit_code == 2
    assert command(recipe, "--recipe", recipe).exit_code == 2

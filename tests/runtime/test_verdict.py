"""Whether an artifact runs on a node is said before its weights are read, and agrees with what a load does."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from nodes import Node

import aotair
from aotair.cli import main
from aotair_runtime.devices import onednn, onednn_product
from aotair_runtime.errors import AotairError, ArgumentError, ArtifactError, DeviceError, MalformedError, TruncatedError
from aotair_runtime.fitness import node as nodes
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Op, Program

# The model of the tests is in bfloat16, for which not every processor has kernels.
HERE = "runs here slower" if "bfloat16" in nodes.emulated() else "runs here"
INPUTS = {"input": {"shape": ["rows", 64], "dtype": "bfloat16", "pad": 0}}


@pytest.fixture(scope="module")
def artifacts_of_the_test(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(torch.bfloat16)
    made = {}
    for device in ("cpu", "npu"):
        out = tmp_path_factory.mktemp("verdict") / f"for_{device}"
        target = {"device": device}
        made[device] = aotair.build(
            out=out, model=model, name="it", inputs=INPUTS, buckets={"rows": [1, 8]}, target=target
        )
    return made


@pytest.fixture
def path(artifacts_of_the_test: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifacts_of_the_test["cpu"], tmp_path / "it.aotair"))


def rewrite(path: Path, change: Callable[[Program], Program]) -> None:
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(change(program)))


def needing(**fields: object) -> Callable[[Program], Program]:
    return lambda program: replace(program, requirements=replace(program.requirements, **fields))


def with_op(name: str | None = None, schema: str | None = None) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        if name is not None:
            return replace(program, ops=(*program.ops, Op(name, "")))
        return replace(program, ops=(replace(program.ops[0], schema=schema), *program.ops[1:]))

    return change


def standing(path: Path, name: str, **options: object) -> str:
    """Of the first row whose name begins so."""
    rows = aotair.check(path, **options).requirements
    return next(row.standing for row in rows if row.name.startswith(name))


def test_what_was_built_here_runs_here(path: Path):
    found = aotair.check(path)
    assert found.answer == HERE and found.runs and found.device == "cpu"
    assert {row.name for row in found.reasons} <= ({"weights", "instruction set"} if HERE != "runs here" else set())
    assert [row.name for row in found.requirements] == [
        "torch", "device", "ops", "namespaces to allow", "captures", "memory", "weights", "instruction set",
    ]  # fmt: skip
    aotair.load(path).close()


def test_the_weights_are_not_read(path: Path):
    before = aotair.check(path)
    weights = path / "weights.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    after = aotair.check(path)
    assert (after.answer, after.device) == (before.answer, before.device) == (HERE, "cpu")
    # What is free of the memory is another number at each look.
    assert [(r.name, r.demanded, r.standing) for r in after.requirements] == [
        (r.name, r.demanded, r.standing) for r in before.requirements
    ]


LACKS: dict[str, tuple[Callable[[Program], Program], dict, str]] = {
    "torch": (needing(torch_min="99.1"), {}, "torch"),
    "an op": (with_op("aten::no_such_op"), {}, "op aten::no_such_op"),
    "an overload": (with_op("aten::add.nothing"), {}, "op aten::add.nothing"),
    "its schema": (with_op(schema="aten::linear(Tensor a) -> Tensor"), {}, "op aten::linear"),
    "a namespace": (with_op("mine::it"), {}, "namespaces to allow"),
    "an op of an allowed namespace": (with_op("mine::it"), {"allow_namespaces": ["mine"]}, "op mine::it"),
    "captures": (lambda p: p, {"limits": aotair.Limits(captures=1)}, "captures"),
    "streams": (lambda p: p, {"limits": aotair.Limits(streams=1)}, "captures"),
    "memory, as the caller says": (lambda p: p, {"memory_budget": "1KiB"}, "memory budget"),
    "memory, as the recipe says": (needing(memory_budget=1000), {}, "memory budget"),
    "a share of memory": (needing(memory_share=1e-9), {}, "memory budget"),
    "a device of no node": (needing(device="abacus"), {}, "device"),
}  # fmt: skip


@pytest.mark.parametrize("what", LACKS)
def test_what_the_node_lacks_is_a_row_and_a_load_is_refused(path: Path, what: str):
    change, options, row = LACKS[what]
    rewrite(path, change)
    found = aotair.check(path, **options)
    assert found.answer == "cannot" and not found.runs
    assert standing(path, row, **options) == "missing"
    assert any(item.name.startswith(row) and item.fix for item in found.reasons)
    with pytest.raises(AotairError):
        aotair.load(path, **options)


def test_fewer_buckets_may_fit_where_all_do_not(path: Path):
    some = {"limits": aotair.Limits(captures=1), "capture": ["rows=1"]}
    assert aotair.check(path, **some).runs
    aotair.load(path, **some).close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this node has what the test lacks")
def test_the_cpu_stands_in_for_a_device_that_is_not_there(path: Path):
    rewrite(path, needing(device="cuda"))
    found = aotair.check(path)
    assert (found.answer, found.device) == ("runs here slower", "cpu")
    assert standing(path, "device") == "slower" and "device='cpu'" in found.reasons[0].fix
    aotair.load(path, device=found.device).close()
    assert aotair.check(path, device="cpu").answer == "runs here slower"
    for wanted in ("cuda", "cuda:3", torch.device("cuda")):
        assert aotair.check(path, device=wanted).answer == "cannot"
        with pytest.raises(AotairError):
            aotair.load(path, device=wanted)


def test_weights_without_a_packed_form_are_slower(path: Path, monkeypatch: pytest.MonkeyPatch):
    assert standing(path, "weights", pack_weights=False) == "slower"
    monkeypatch.setattr(onednn, "_has_kernels", lambda: False)
    monkeypatch.setattr(onednn_product, "library", lambda: None)
    assert standing(path, "weights") == "slower" and aotair.check(path).answer == "runs here slower"


def test_another_instruction_set_is_slower(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "emulated", lambda: frozenset({"bfloat16"}))
    assert standing(path, "instruction set") == "slower"
    assert any("bfloat16" in row.fix for row in aotair.check(path).reasons)


def test_less_memory_than_it_takes_is_slower_on_the_cpu(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "available_memory", lambda: 100)
    assert standing(path, "memory") == "slower"


def test_memory_that_a_group_of_processes_may_take_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(nodes, "_GROUP", tmp_path)
    assert nodes.available_memory() == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert nodes.available_memory() > 1 << 20


def test_a_driver_that_does_not_answer_is_a_row(path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(name: object) -> None:
        raise RuntimeError("aclInit failed\nand more")

    monkeypatch.setattr(nodes, "open_device", fail)
    assert [row.has for row in aotair.check(path, device="npu").reasons] == ["aclInit failed"]


# ---- what is no artifact ---------------------------------------------------------------------------------------------


def cut_program(path: Path) -> None:
    (path / "program.msgpack").write_bytes((path / "program.msgpack").read_bytes()[:-9])


def cut_weights(path: Path) -> None:
    (path / "weights.safetensors").write_bytes((path / "weights.safetensors").read_bytes()[:-9])


BROKEN = {
    "nothing": shutil.rmtree,
    "no program": lambda path: (path / "program.msgpack").unlink(),
    "no weights": lambda path: (path / "weights.safetensors").unlink(),
    "a cut program": cut_program,
    "cut weights": cut_weights,
    "a rule broken": lambda path: rewrite(path, lambda program: replace(program, alignment=-3)),
    "a schema that is none": lambda path: rewrite(path, with_op(schema="((((")),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_malformed_is_refused_as_a_load_refuses_it(path: Path, what: str):
    BROKEN[what](path)
    with pytest.raises(ArtifactError) as loaded:
        aotair.load(path)
    if what == "a schema that is none":  # an op with another schema is a row
        assert aotair.check(path).answer == "cannot"
        return
    with pytest.raises(type(loaded.value)) as checked:
        aotair.check(path)
    assert type(checked.value) is type(loaded.value) and str(checked.value) == str(loaded.value)


def test_constants_that_the_file_cannot_hold_are_refused_before_one_is_packed_on_trial(path: Path):
    def huge(program: Program) -> Program:
        first = replace(program.constants[0], shape=(1 << 20, 1 << 20))
        return replace(program, constants=(first, *program.constants[1:]))

    rewrite(path, huge)
    with pytest.raises((MalformedError, TruncatedError)):
        aotair.check(path)


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "npu:x", "", "npu" * 1000])
def test_a_device_of_no_node_is_refused(path: Path, device: str):
    with pytest.raises(DeviceError) as caught:
        aotair.check(path, device=device)
    assert len(str(caught.value)) < 300


def test_wrong_arguments_are_refused(path: Path):
    with pytest.raises(ArgumentError):
        aotair.check(path, memory_budget="much")
    with pytest.raises(ArgumentError):
        aotair.check(path, capture=["rows=77"])


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_what_is_built_for_a_device_that_is_there_runs_there(node: Node, artifacts_of_the_test: dict[str, Path]):
    if node.kind not in artifacts_of_the_test:
        pytest.skip("no artifact for it")
    found = aotair.check(artifacts_of_the_test[node.kind])
    assert found.answer == (HERE if node.kind == "cpu" else "runs here") and found.device.startswith(node.kind)


def test_vendor_package_and_soc_are_rows(node: Node, artifacts_of_the_test: dict[str, Path], tmp_path: Path):
    if node.kind != "npu":
        pytest.skip("of NPUs")
    path = Path(shutil.copytree(artifacts_of_the_test["npu"], tmp_path / "it"))
    rewrite(path, needing(vendor_min="99.0", soc="Ascend1"))
    assert {row.name for row in aotair.check(path).reasons} == {"package for npu", "SoC"}
    assert aotair.check(path, device="cpu").answer == "runs here slower", "the CPU asks for neither"


# ---- the command -----------------------------------------------------------------------------------------------------


def doctor(*arguments: object):
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def test_the_command_prints_a_row_for_each_requirement(path: Path):
    done = doctor(path)
    assert done.exit_code == 0 and done.output.startswith(f"it: {HERE}, on cpu\n")
    rewrite(path, with_op("mine::it"))
    done = doctor(path)
    assert done.exit_code == 1 and done.output.startswith("it: cannot\n") and "op mine::it" in done.output
    done = doctor(path, "--json")
    said = json.loads(done.output)
    assert done.exit_code == 1 and said["answer"] == "cannot"
    assert {row["name"]: row["standing"] for row in said["requirements"]}["ops"] == "missing"


def test_the_command_refuses_what_is_malformed(path: Path):
    cut_program(path)
    done = doctor(path)
    assert done.exit_code == 1 and done.output.startswith("error: ")


def test_without_an_artifact_the_command_says_what_the_machine_has():
    said = json.loads(doctor("--json").output)
    assert said["torch"] == torch.__version__ and said["threads"] == torch.get_num_threads()
    assert math.isfinite(said["memory"]) and said["available"] > 0
    assert {found["device"].partition(":")[0] for found in said["devices"]} == {"cuda", "npu"}
    assert all(found["problem"] or found["total"] for found in said["devices"])
    text = doctor().output
    assert torch.__version__ in text and "threads" in text and "npu" in text

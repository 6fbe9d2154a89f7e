"""An artifact is untrusted input: whatever is wrong with one is refused with its own error, and nothing of it runs."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoilt import plain, spoil

import aotair
from aotair_runtime.artifact.digests import digest
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import (
    AlteredError,
    ArtifactError,
    CaptureError,
    DeviceError,
    FormatVersionError,
    MalformedError,
    NamespaceError,
    NotAnArtifactError,
    OutOfMemoryError,
    RequirementError,
    TruncatedError,
)
from aotair_runtime.format import codec
from aotair_runtime.format.schema import (
    MAGIC,
    READS,
    Constant,
    Dim,
    DTypeArg,
    File,
    Form,
    Fresh,
    Joined,
    Layout,
    Op,
    Origin,
    Program,
    Reserve,
    Space,
    State,
    TensorArg,
)


@pytest.fixture
def copy(built, tmp_path: Path) -> Path:
    """A copy of a good artifact, to be spoilt."""
    return Path(shutil.copytree(built("linear"), tmp_path / "spoilt.aotair"))


def rewrite(path: Path, change: Callable[[Program], Program]) -> Path:
    """Change the program and give it a right digest again, as an attacker would."""
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(change(program)))
    return path


# ---- the files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda p: p / "gone", lambda p: p, lambda p: p.parent])
def test_a_path_that_is_no_artifact(tmp_path: Path, make):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAnArtifactError):
        aotair.load(make(tmp_path / "empty"))


def test_a_file_that_is_something_else(copy: Path):
    (copy / "program.msgpack").write_bytes(msgpack.packb({"magic": MAGIC}))
    with pytest.raises(NotAnArtifactError):
        aotair.load(copy)


@pytest.mark.parametrize("name", ["program.msgpack", "weights.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file(copy: Path, name: str, share: float):
    file = copy / name
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(TruncatedError):
        aotair.load(copy)


@pytest.mark.parametrize("name", ["program.msgpack", "weights.safetensors"])
def test_a_missing_file(copy: Path, name: str):
    (copy / name).unlink()
    with pytest.raises((TruncatedError, NotAnArtifactError)):
        aotair.load(copy)


@pytest.mark.parametrize("name", ["program.msgpack", "weights.safetensors"])
def test_any_altered_byte(copy: Path, name: str):
    file = copy / name
    data = file.read_bytes()
    for position in {0, 9, len(data) // 2, len(data) - 1}:
        file.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ArtifactError):
            aotair.load(copy)
    file.write_bytes(data)
    aotair.load(copy)


def test_altered_golden_tensors_do_not_stop_a_load_but_a_verification(copy: Path):
    from aotair_runtime.weights.golden import replay_golden

    file = copy / "golden.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(AlteredError):
        list(replay_golden(aotair.load(copy)))


def test_a_newer_format(copy: Path):
    magic, _, hashed, body = msgpack.unpackb((copy / "program.msgpack").read_bytes())
    (copy / "program.msgpack").write_bytes(msgpack.packb([magic, READS[-1] + 1, hashed, body]))
    with pytest.raises(FormatVersionError, match="install a newer aotair-runtime"):
        aotair.load(copy)


def test_a_digest_that_lies(copy: Path):
    magic, version, _, body = msgpack.unpackb((copy / "program.msgpack").read_bytes())
    (copy / "program.msgpack").write_bytes(msgpack.packb([magic, version, b"0" * 32, body]))
    with pytest.raises(AlteredError):
        aotair.load(copy)


def test_weights_that_are_not_the_programs(copy: Path):
    for tensors in (
        {},
        {"linear.weight": torch.zeros(3, 4), "linear.bias": torch.zeros(4)},
        {"linear.weight": torch.zeros(3, 4).double(), "linear.bias": torch.zeros(3)},
    ):
        file = copy / "weights.safetensors"
        safetensors.torch.save_file(tensors, file)
        entry = File(file.name, file.stat().st_size, digest(file))
        rewrite(copy, lambda p, e=entry: replace(p, files=(e, *p.files[1:])))
        with pytest.raises(MalformedError, match=r"is not what the program expects|shorter than the prog"):
            aotair.load(copy)


@pytest.mark.parametrize("name", ["../weights.safetensors", "/etc/passwd", "weights.safetensors/../x", ""])
def test_files_outside_the_directory_are_not_even_looked_for(copy: Path, name: str, monkeypatch):
    rewrite(copy, lambda p: replace(p, files=(replace(p.files[0], name=name), *p.files[1:])))
    monkeypatch.setattr("aotair_runtime.artifact.open.check_file", lambda *_: pytest.fail("looked"))
    with pytest.raises(MalformedError, match="files"):
        aotair.load(copy)


def test_an_arena_that_no_machine_has_is_refused_with_what_it_would_take(copy: Path):
    rewrite(copy, lambda p: replace(p, arena=(1 << 46) - 4096))
    with pytest.raises(OutOfMemoryError, match=r"70,368,744,\d+,\d+ bytes"):
        aotair.load(copy, device="cpu")


# ---- the node ------------------------------------------------------------------------------------------------------


def test_a_node_with_too_old_a_torch(copy: Path):
    rewrite(copy, lambda p: replace(p, requirements=replace(p.requirements, torch_min="99.1")))
    with pytest.raises(RequirementError, match="too old"):
        aotair.load(copy)


def test_an_artifact_for_another_device(node, copy: Path):
    other = {"cpu": "npu", "npu": "cuda", "cuda": "npu"}[node.kind]
    rewrite(copy, lambda p: replace(p, requirements=replace(p.requirements, device=other)))
    if node.kind == "cpu":  # the host runs it for those who ask, and only for them
        x = torch.ones(1, 4)
        want = aotair.load(node.path("linear"))(x)
        assert torch.equal(aotair.load(copy, device="cpu")(x), want)
        with pytest.raises(RequirementError, match="torch_npu"):
            aotair.load(copy)
    else:
        with pytest.raises(RequirementError, match="built for another device"):
            aotair.load(copy, device=node.kind)


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "npu:x", ""])
def test_a_device_that_there_is_not(copy: Path, name: str):
    with pytest.raises(DeviceError, match="unknown device"):
        aotair.load(copy, device=name or ":")


def test_an_op_with_another_schema(copy: Path):
    rewrite(copy, lambda p: replace(p, ops=tuple(replace(op, schema=op.schema + " ") for op in p.ops)))
    with pytest.raises(RequirementError, match="has another schema here"):
        aotair.load(copy)


@pytest.mark.parametrize(
    "name",
    [
        "evil::op.default", "prim::Print", "aten::from_file", "aten::set_.source_Tensor", "aten::resize_",
        "aten::__class__", "aten::no_such_op", "os::system", "aten", "aten::add.Tensor.x", "aten::../../x", "_C::x",
        "builtins::eval", "aten::save", "torch::load", "profiler::_record_function_enter",
    ],
)  # fmt: skip
def test_ops_that_a_program_may_not_name(copy: Path, name: str):
    rewrite(copy, lambda p: replace(p, ops=tuple(Op(name, op.schema) for op in p.ops)))
    before = set(sys.modules)
    with pytest.raises((NamespaceError, RequirementError)):
        aotair.load(copy)
    assert set(sys.modules) == before


def test_a_namespace_can_be_allowed_and_is_then_looked_up(copy: Path):
    rewrite(copy, lambda p: replace(p, ops=tuple(Op("mine::op", op.schema) for op in p.ops)))
    with pytest.raises(NamespaceError, match="allow_namespaces"):
        aotair.load(copy)
    with pytest.raises(RequirementError, match="no op mine::op"):
        aotair.load(copy, allow_namespaces=["mine"])


# ---- the program's numbers -----------------------------------------------------------------------------------------


def first_bucket(program: Program, **fields: object) -> Program:
    entry = program.entry_points[0]
    bucket = replace(entry.buckets[0], **fields)
    return replace(program, entry_points=(replace(entry, buckets=(bucket, *entry.buckets[1:])),))


def with_tensor(program: Program, number: int, **fields: object) -> Program:
    tensors = list(program.entry_points[0].buckets[0].tensors)
    tensors[number] = replace(tensors[number], **fields)
    return first_bucket(program, tensors=tuple(tensors))


def with_entry(program: Program, **fields: object) -> Program:
    return replace(program, entry_points=(replace(program.entry_points[0], **fields),))


def joined(program: Program, *pieces: str, count: int = 0) -> Joined:
    """Pieces of a weight that there is."""
    return Joined(program.constants[0].names[0][0], pieces, count)


def with_constant(program: Program, **fields: object) -> Program:
    return replace(program, constants=(replace(program.constants[0], **fields), *program.constants[1:]))


def with_instruction(program: Program, **fields: object) -> Program:
    return replace(program, instructions=(replace(program.instructions[0], **fields), *program.instructions[1:]))


SPOILT = {
    "offset beyond the arena": lambda p: with_tensor(p, 0, offset=p.arena),
    "negative offset": lambda p: with_tensor(p, 0, offset=-64),
    "huge offset": lambda p: with_tensor(p, 0, offset=1 << 62),
    "odd offset": lambda p: with_tensor(p, 0, offset=1),
    "unknown layout": lambda p: with_tensor(p, 0, layout=999),
    "negative layout": lambda p: with_tensor(p, 0, layout=-1),
    "unknown space": lambda p: with_tensor(p, 0, space=9),
    "a caller's memory that is none": lambda p: with_tensor(p, 0, space=int(Space.CALLER)),
    "an input in a constant": lambda p: with_tensor(p, 0, space=int(Space.CONSTANT)),
    "unknown constant": lambda p: with_tensor(p, 1, index=99),
    "beyond a constant": lambda p: with_tensor(p, 1, offset=1 << 20),
    "unknown input tensor": lambda p: first_bucket(p, inputs=(999,)),
    "too few inputs": lambda p: first_bucket(p, inputs=()),
    "too many outputs": lambda p: first_bucket(p, outputs=(0, 0)),
    "unknown instruction": lambda p: first_bucket(p, code=(999,)),
    "negative instruction": lambda p: first_bucket(p, code=(-1,)),
    "higher than the arena": lambda p: first_bucket(p, height=p.arena + 1),
    "sizes of zero": lambda p: first_bucket(p, sizes=(0,)),
    "too many sizes": lambda p: first_bucket(p, sizes=(1, 1)),
    "sizes that are not the tensors'": lambda p: first_bucket(p, sizes=(2,)),
    "memory beside the arena for no op": lambda p: first_bucket(p, fresh=(Fresh(99, 0, 1, 1),)),
    "memory beside the arena on no stream": lambda p: first_bucket(p, fresh=(Fresh(0, 1, 1, 1),)),
    "memory beside the arena below zero": lambda p: first_bucket(p, fresh=(Fresh(0, 0, -1, 1),)),
    "more allocations than calls": lambda p: first_bucket(p, fresh=(Fresh(0, 0, 1, 1 << 40),)),
    "a negative reserve": lambda p: replace(p, reserve=Reserve(-1, 0)),
    "an impossible reserve": lambda p: replace(p, reserve=Reserve(0, 1 << 60)),
    "a negative budget": lambda p: replace(p, requirements=replace(p.requirements, memory_budget=-1)),
    "more than the whole device": lambda p: replace(p, requirements=replace(p.requirements, memory_share=1.5)),
    "negative arena": lambda p: replace(p, arena=-1),
    "impossible arena": lambda p: replace(p, arena=1 << 60),
    "arena of an odd size": lambda p: replace(p, arena=p.arena + 1),
    "no power of two": lambda p: replace(p, alignment=48),
    "negative stride": lambda p: replace(
        p, layouts=tuple(replace(x, strides=(-1,) * len(x.strides)) for x in p.layouts)
    ),
    "stride for no size": lambda p: replace(p, layouts=tuple(replace(x, strides=()) for x in p.layouts)),
    "impossible size": lambda p: replace(p, layouts=(Layout("float32", (1 << 40, 1 << 40), (1, 1)), *p.layouts[1:])),
    "unknown dtype": lambda p: replace(p, layouts=tuple(replace(x, dtype="nn") for x in p.layouts)),
    "dtype that is none": lambda p: replace(p, layouts=tuple(replace(x, dtype="load") for x in p.layouts)),
    "dtype with a path": lambda p: replace(p, layouts=tuple(replace(x, dtype="os.path") for x in p.layouts)),
    "negative constant": lambda p: replace(p, constants=(Constant("x", "float32", (-1,)), *p.constants[1:])),
    "an unknown kind of constant": lambda p: with_constant(p, kind="pickle", names=(("x",),)),
    "a constant that stands for nothing": lambda p: with_constant(p, kind="weight", names=()),
    "a constant of names without a kind": lambda p: with_constant(p, kind="", names=(("x",),)),
    "a constant of a tensor without a name": lambda p: with_constant(p, names=((),)),
    "a name twice in one constant": lambda p: with_constant(p, names=(("x",), ("x",))),
    "a name of two constants": lambda p: with_constant(p, names=p.constants[1].names),
    "a name that is read and is not": lambda p: replace(p, unread=p.constants[0].names[0]),
    "an unread name twice": lambda p: replace(p, unread=("x", "x")),
    "pieces of nothing": lambda p: replace(p, joined=(Joined("ghost", ("a",)),)),
    "pieces of a tensor twice": lambda p: replace(p, joined=(joined(p, "a"), joined(p, "b"))),
    "no pieces": lambda p: replace(p, joined=(joined(p),)),
    "pieces without a place for a number": lambda p: replace(p, joined=(joined(p, "a", count=2),)),
    "less than no pieces": lambda p: replace(p, joined=(joined(p, "a{}", count=-1),)),
    "a piece twice": lambda p: replace(p, joined=(joined(p, "a{}", "a{}", count=2),)),
    "very many pieces": lambda p: replace(p, joined=(joined(p, "a{}", count=1 << 40),)),
    "pieces with endless names": lambda p: replace(p, joined=(joined(p, "a" * 1000 + "{}", count=1 << 20),)),
    "an origin that is no digest": lambda p: replace(p, origin=Origin("", "../x", "", "")),
    "an origin of another length": lambda p: replace(p, origin=Origin("", "", "", "0" * 63)),
    "state of no constant": lambda p: replace(p, state=(State("s", 99),)),
    "unknown op": lambda p: with_instruction(p, op=99),
    "unknown form": lambda p: with_instruction(p, form=7),
    "unknown argument": lambda p: with_instruction(p, args=(TensorArg(999),)),
    "unknown nested argument": lambda p: with_instruction(p, args=((TensorArg(-2),),)),
    "unknown argument by name": lambda p: with_instruction(p, kwargs=(("self", TensorArg(999)),)),
    "dtype argument that is none": lambda p: with_instruction(p, args=(DTypeArg("load"),)),
    "result in a constant": lambda p: with_instruction(p, outs=(1,)),
    "result nowhere": lambda p: with_instruction(p, outs=(999,)),
    "no buckets": lambda p: with_entry(p, buckets=(), capture_order=()),
    "no entry points": lambda p: replace(p, entry_points=()),
    "entry points of one name": lambda p: replace(p, entry_points=p.entry_points * 2),
    "capture order with a gap": lambda p: with_entry(p, capture_order=(0, 0, 1)),
    "a dimension nobody has": lambda p: with_entry(p, dims=(*p.entry_points[0].dims, Dim("ghost", True))),
    "a least size that is none": lambda p: with_entry(
        p, dims=tuple(replace(dim, least=-1) for dim in p.entry_points[0].dims)
    ),
    "an output structure of nothing": lambda p: with_entry(p, structure=("tensor", 5)),
    "a named tuple with a field that is no name": lambda p: with_entry(
        p, structure=("named", "Pair", ("__class__",), ("tensor", 0))
    ),
    "a named tuple with a field twice": lambda p: with_entry(
        p, structure=("named", "Pair", ("a", "a"), ("tensor", 0), ("tensor", 0))
    ),
    "a named tuple of no name": lambda p: with_entry(p, structure=("named", "a\0b", ("a",), ("tensor", 0))),
    "a record with a number for a field": lambda p: with_entry(p, structure=("record", "R", (1,), ("tensor", 0))),
    "a record of no name": lambda p: with_entry(p, structure=("record", 3, ("a",), ("tensor", 0))),
    "an input padded with text": lambda p: with_entry(p, inputs=(replace(p.entry_points[0].inputs[0], pad="much"),)),
    "an input padded with a tensor": lambda p: with_entry(
        p, inputs=(replace(p.entry_points[0].inputs[0], pad=TensorArg(0)),)
    ),
    "an input padded with a list": lambda p: with_entry(p, inputs=(replace(p.entry_points[0].inputs[0], pad=(0,)),)),
    "a named tuple with a number for a field": lambda p: with_entry(p, structure=("named", "P", (1,), ("tensor", 0))),
    "a constant of an input's name": lambda p: with_entry(p, constants=((p.entry_points[0].inputs[0].name, 1),)),
    "a constant within an input": lambda p: with_entry(p, constants=((p.entry_points[0].inputs[0].name + ".k", 1),)),
    "a constant that is a tensor": lambda p: with_entry(p, constants=(("k", TensorArg(0)),)),
    "a constant twice": lambda p: with_entry(p, constants=(("k", 1), ("k", 2))),
    "an unknown kind of input": lambda p: with_entry(
        p, inputs=tuple(replace(i, kind="parameter") for i in p.entry_points[0].inputs)
    ),
    "a size of an unknown dimension": lambda p: with_entry(
        p, inputs=tuple(replace(i, shape=(("dim", 9), 4)) for i in p.entry_points[0].inputs)
    ),
    "an output size that divides by nothing": lambda p: with_entry(
        p, outputs=tuple(replace(o, shape=(("//", ("dim", 0), 0), 3)) for o in p.entry_points[0].outputs)
    ),
    "an output that is not promised": lambda p: with_entry(
        p, outputs=tuple(replace(o, dtype="float64") for o in p.entry_points[0].outputs)
    ),
    "the same file twice": lambda p: replace(p, files=p.files + p.files),
    "no weights": lambda p: replace(p, files=p.files[1:]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_program_that_breaks_a_rule(copy: Path, name: str):
    rewrite(copy, SPOILT[name])
    with pytest.raises(MalformedError):
        aotair.load(copy)


def test_padding_with_nothing_is_refused(copy: Path):
    rewrite(copy, lambda p: with_entry(p, inputs=(replace(p.entry_points[0].inputs[0], pad=None),)))
    model = aotair.load(copy)
    with pytest.raises(MalformedError, match="does not say with what"):
        model(torch.ones(3, 4))


def test_an_output_in_a_constant_is_refused(built, tmp_path: Path):
    path = Path(shutil.copytree(built("tied"), tmp_path / "x"))
    program = read_program(path)
    bucket = program.entry_points[0].buckets[0]
    weight = next(i for i, t in enumerate(bucket.tensors) if t.space == Space.CONSTANT)
    rewrite(path, lambda p: first_bucket(p, outputs=(weight,)))
    with pytest.raises(MalformedError, match="memory that may be written"):
        aotair.load(path)


@pytest.mark.parametrize("form", [Form.EFFECT, Form.COPY])
def test_an_effect_on_a_constant_is_refused(copy: Path, form: Form):
    op = torch.ops.aten.zero_.default

    def zero_the_weight(program: Program) -> Program:
        tensors = program.entry_points[0].buckets[0].tensors
        weight = next(i for i, t in enumerate(tensors) if t.space == Space.CONSTANT)
        program = replace(program, ops=tuple(Op(op.name(), str(op._schema)) for _ in program.ops))
        return with_instruction(program, form=int(form), args=(TensorArg(weight),), kwargs=(), outs=(-1,) * form)

    rewrite(copy, zero_the_weight)
    with pytest.raises(MalformedError, match="would write into a constant"):
        aotair.load(copy)


@pytest.mark.parametrize("outs", [(), (3, 3)])
def test_an_instruction_with_the_wrong_number_of_results(copy: Path, outs):
    rewrite(copy, lambda p: with_instruction(p, outs=outs))
    with pytest.raises(MalformedError, match=r"does not take|writes over its own results"):
        aotair.load(copy)


def test_arguments_that_do_not_fit_the_op_are_an_error_of_the_instruction(copy: Path):
    rewrite(copy, lambda p: with_instruction(p, args=("a string",)))
    with pytest.raises((CaptureError, MalformedError)):
        aotair.load(copy)(torch.ones(1, 4))


# ---- any bytes -----------------------------------------------------------------------------------------------------


def enveloped(body: bytes) -> bytes:
    import hashlib

    return msgpack.packb([MAGIC, 1, hashlib.sha256(body).digest(), body])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(data: bytes):
    for whole in (data, enveloped(data)):
        with pytest.raises(ArtifactError):
            codec.parse(whole, "x")


@settings(max_examples=300, deadline=None)
@given(plain())
def test_any_plain_data_is_refused_cleanly(data):
    with pytest.raises(ArtifactError):
        codec.parse(enveloped(msgpack.packb(data)), "x")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_changed_value_anywhere_is_refused_or_harmless(built, data):
    """Walk to a random place of the decoded program and put something else there; never anything but our errors."""
    from aotair_runtime.format.rules import check_program

    body = msgpack.unpackb(msgpack.unpackb((built("encoder") / "program.msgpack").read_bytes())[3])
    spoil(data, body, plain())
    with contextlib.suppress(ArtifactError):
        check_program(codec.parse(enveloped(msgpack.packb(body)), "x"), "x")


def test_deep_nesting_is_refused():
    deep: object = ["l"]
    for _ in range(200):
        deep = ["l", deep]
    with pytest.raises(ArtifactError):
        codec.parse(enveloped(msgpack.packb([deep])), "x")


def test_a_fault_is_named_by_its_place(copy: Path):
    body = msgpack.unpackb(msgpack.unpackb((copy / "program.msgpack").read_bytes())[3])
    fields = [name for name, _ in codec._fields(Program)]
    body[fields.index("layouts")][1][1][0] = "four"
    with pytest.raises(
        MalformedError, match=r"program\.layouts\[1\]\.shape\[0\] is malformed\n  expected: int\n  got: 'four'"
    ):
        codec.parse(enveloped(msgpack.packb(body)), "x")


def test_loading_runs_nothing_and_reads_nothing_else(copy: Path, monkeypatch):
    """No pickle, no import by name, no process: the ways in which a file could run code are not used at all."""
    import builtins
    import pickle
    import subprocess

    for module, name in [
        (pickle, "loads"),
        (pickle, "load"),
        (pickle, "Unpickler"),
        (os, "system"),
        (subprocess, "Popen"),
    ]:
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("called"))
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, lambda *_, **__: pytest.fail("called"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("called"))
    model = aotair.load(copy)
    model(torch.ones(1, 4))

"""What a program may say about host arguments: lists that calls bring, workspaces that ops measure, no more."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import RECIPES

import aotair
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import ArtifactError, CaptureError, MalformedError, RequirementError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Arg, Form, HostArg, Op, Program, Space, TensorArg, WorkspaceArg


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    recipe = RECIPES["decode"] | {"target": {"device": "npu"}}
    return aotair.build(recipe, tmp_path_factory.mktemp("lists") / "decode.aotair")


@pytest.fixture
def rewritten(artifact, tmp_path) -> Callable:
    def make(change: Callable[[Program], Program]) -> Path:
        path = shutil.copytree(artifact, tmp_path / "decode.aotair")
        (path / "program.msgpack").write_bytes(codec.dump(change(read_program(path))))
        return path

    return make


def kwargs(change: Callable[[str, object], object], **fields) -> Callable[[Program], Program]:
    """The program with the keyword arguments of its updated instructions changed."""

    def run(program: Program) -> Program:
        made = []
        for item in program.instructions:
            if any(isinstance(value, HostArg) for _, value in item.kwargs):
                item = replace(item, kwargs=tuple((n, change(n, v)) for n, v in item.kwargs), **fields)
            made.append(item)
        return replace(program, instructions=tuple(made))

    return run


def lists(make: Callable[[HostArg], object]) -> Callable[[Program], Program]:
    return kwargs(lambda _, value: make(value) if isinstance(value, HostArg) else value)


def workspaces(make: Callable[[WorkspaceArg], object]) -> Callable[[Program], Program]:
    return kwargs(lambda _, value: make(value) if isinstance(value, WorkspaceArg) else value)


def inputs(number: int, **fields) -> Callable[[Program], Program]:
    def run(program: Program) -> Program:
        entry = program.entry_points[0]
        changed = list(entry.inputs)
        changed[number] = replace(changed[number], **fields)
        return replace(program, entry_points=(replace(entry, inputs=tuple(changed)),))

    return run


def buckets(**fields) -> Callable[[Program], Program]:
    def run(program: Program) -> Program:
        entry = program.entry_points[0]
        made = tuple(replace(bucket, **fields) for bucket in entry.buckets)
        return replace(program, entry_points=(replace(entry, buckets=made),))

    return run


def read_as_a_tensor(program: Program) -> Program:
    bucket = program.entry_points[0].buckets[0]
    number = next(n for n, at in enumerate(bucket.tensors) if at.space == Space.INPUT and at.index == 2)
    return lists_and("block_table", TensorArg(number))(program)


def lists_and(name: str, value: object, **fields) -> Callable[[Program], Program]:
    """The program with one more keyword argument beside its lists."""

    def run(program: Program) -> Program:
        made = [
            replace(item, kwargs=(*item.kwargs, (name, value)), **fields)
            if any(isinstance(one, HostArg) for _, one in item.kwargs)
            else item
            for item in program.instructions
        ]
        return replace(program, instructions=tuple(made))

    return run


def first_by_position(program: Program) -> Program:
    first = program.instructions[0]
    return replace(program, instructions=(replace(first, args=(*first.args, HostArg(2))), *program.instructions[1:]))


MALFORMED = {
    "a list of no input": lists(lambda _: HostArg(99)),
    "a list of a negative input": lists(lambda _: HostArg(-1)),
    "a list of a tensor": lists(lambda _: HostArg(0)),
    "a list within a list": lists(lambda value: (value,)),
    "a list by position": first_by_position,
    "a workspace of no op": workspaces(lambda _: WorkspaceArg(99)),
    "a workspace of a negative op": workspaces(lambda _: WorkspaceArg(-1)),
    "a workspace within a list": workspaces(lambda value: (value,)),
    "a workspace beside no list": lists(lambda _: None),
    "host arguments of an op that returns": kwargs(lambda _, value: value, form=int(Form.COPY)),
    "a list that is a tensor too": read_as_a_tensor,
    "no host input": inputs(2, host=False),
    "a host input without a range": inputs(2, value_range=None),
    "a host input without numbers": inputs(2, value_range=(float("nan"), 3.0)),
    "a host input of endless numbers": inputs(2, value_range=(0.0, float("inf"))),
    "a host input of floats": inputs(0, host=True),
    "a host input that is mutated": inputs(2, kind="mutated"),
    "a host input padded with text": inputs(2, pad="much"),
    "too many updates": buckets(updated=9),
    "no updates": buckets(updated=0),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_broken_rule_is_refused(rewritten, what):
    with pytest.raises(MalformedError):
        aotair.load(rewritten(MALFORMED[what]), device="cpu")


def test_types_are_checked():
    for bad in (["host", 1.5], ["host"], ["host", 1, 2], ["host", None], ["workspace", "x"], ["workspace", True]):
        with pytest.raises(MalformedError):
            codec._decode(Arg, bad, "x", "y")
    assert codec._decode(Arg, ["host", 3], "x", "y") == HostArg(3)


def test_a_workspace_is_measured_by_an_op_that_writes_nothing(rewritten):
    def change(program: Program) -> Program:
        number = len(program.ops)
        found = program.ops[program.instructions[0].op]
        assert "out" in found.name
        return workspaces(lambda _: WorkspaceArg(number))(replace(program, ops=(*program.ops, Op(*_fill()))))

    with pytest.raises((MalformedError, CaptureError)):
        aotair.load(rewritten(change), device="cpu")


def _fill() -> tuple[str, str]:
    op = torch.ops.aten.fill_.Scalar
    return op.name(), str(op._schema)


def test_an_unknown_measure_is_refused(rewritten):
    def change(program: Program) -> Program:
        ops = tuple(Op("npu::_gone", op.schema) if "workspace" in op.name else op for op in program.ops)
        return replace(program, ops=ops)

    with pytest.raises(RequirementError):
        aotair.load(rewritten(change), device="cpu")


def test_results_that_a_schema_does_not_mark_go_nowhere_else(rewritten):
    """The op writes into its `out`, which its schema does not say: it may not be a constant."""

    def change(program: Program) -> Program:
        bucket = program.entry_points[0].buckets[0]
        constant = next(n for n, at in enumerate(bucket.tensors) if at.space == Space.CONSTANT)
        return kwargs(lambda _, value: value, outs=(constant, constant))(program)

    with pytest.raises(ArtifactError):
        aotair.load(rewritten(change), device="cpu")


def test_nor_does_what_is_named_out(rewritten):
    def change(program: Program) -> Program:
        bucket = program.entry_points[0].buckets[0]
        constant = next(n for n, at in enumerate(bucket.tensors) if at.space == Space.CONSTANT)
        named = lists_and("out", (TensorArg(constant), TensorArg(constant)), form=int(Form.EFFECT), outs=())
        return named(program)

    with pytest.raises(
        (MalformedError, CaptureError), match=r"would write into a constant|does not take its arguments"
    ):
        aotair.load(rewritten(change), device="cpu")

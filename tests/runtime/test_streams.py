"""What a program may say about streams, events and inputs: a capture must be legal, and no input is written."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import MalformedError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Form, Instruction, Op, Space, TensorArg
from aotair_runtime.format.stream_rules import stream_fault


def work(stream: int) -> Instruction:
    return Instruction(0, int(Form.EFFECT), (), (), (), "work", stream)


def record(event: int, stream: int) -> Instruction:
    return Instruction(-1, int(Form.RECORD), (event,), (), (), "record", stream)


def wait(event: int, stream: int) -> Instruction:
    return Instruction(-1, int(Form.WAIT), (event,), (), (), "wait", stream)


FORKED = [work(0), record(0, 0), wait(0, 1), work(1), record(1, 1)]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ([*FORKED, wait(1, 0)], ""),
        ([work(0), work(0)], ""),
        (FORKED, "stream 0 ends before stream 1 is done"),
        ([*FORKED, wait(1, 0), work(1)], "stream 0 ends before stream 1 is done"),
        ([work(0), work(1)], "works before it waited"),
        ([record(0, 1), wait(0, 0)], "works before it waited"),
        ([wait(0, 1), record(0, 0)], "before it is recorded"),
        ([*FORKED, record(1, 0), wait(1, 0)], "recorded twice"),
        ([record(5, 0)], "event 5 of 2"),
        ([work(2)], "stream 2 of 2"),
        ([work(-1)], "stream -1 of 2"),
    ],
)
def test_rules_of_streams(code, says: str):
    fault = stream_fault(code, streams=2, events=2)
    assert says in fault and bool(says) == bool(fault)


@st.composite
def codes(draw) -> list[Instruction]:
    """Codes on three streams whose events are recorded once, before they are waited for."""
    code: list[Instruction] = []
    events = 0
    for _ in range(draw(st.integers(0, 14))):
        stream, kind = draw(st.integers(0, 2)), draw(st.sampled_from(["work", "record", "wait"]))
        if kind == "work":
            code.append(work(stream))
        elif kind == "record":
            code.append(record(events, stream))
            events += 1
        elif events:
            code.append(wait(draw(st.integers(0, events - 1)), stream))
    return code


def legal_by_reachability(code: list[Instruction]) -> bool:
    """The same rules from the graph of what comes before what."""
    before: list[set[int]] = []
    last: dict[int, int] = {}
    recorded: dict[int, int] = {}
    taking_part = {0}
    for number, item in enumerate(code):
        mine = set()
        if item.stream in last:
            mine |= before[last[item.stream]] | {last[item.stream]}
        if item.form == Form.WAIT:
            mine |= before[recorded[item.args[0]]] | {recorded[item.args[0]]}
            taking_part.add(item.stream)
        elif item.stream not in taking_part:
            return False
        if item.form == Form.RECORD:
            recorded[item.args[0]] = number
        before.append(mine)
        last[item.stream] = number
    end = before[last[0]] | {last[0]} if 0 in last else set()
    return all(number in end for number, item in enumerate(code) if item.form == Form.EFFECT)


@given(codes())
@settings(max_examples=400, deadline=None)
def test_the_rules_are_those_of_reachability(code):
    fault = stream_fault(code, streams=3, events=20)
    assert (not fault) == legal_by_reachability(code), fault


# ---- in artifacts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def spoil(built, tmp_path: Path):
    """Load an artifact whose first bucket, program or first instruction was changed."""

    def run(change) -> None:
        path = shutil.copytree(built("linear"), tmp_path / "x", dirs_exist_ok=True)
        (path / "program.msgpack").write_bytes(codec.dump(change(read_program(built("linear")))))
        aotair.load(path)

    return run


def first_bucket(program, **fields):
    entry = program.entry_points[0]
    buckets = (replace(entry.buckets[0], **fields), *entry.buckets[1:])
    return replace(program, entry_points=(replace(entry, buckets=buckets),))


def with_code(program, *extra: Instruction, **fields):
    """The first bucket with more instructions."""
    numbers = range(len(program.instructions), len(program.instructions) + len(extra))
    program = replace(program, instructions=(*program.instructions, *extra))
    code = (*program.entry_points[0].buckets[0].code, *numbers)
    return first_bucket(program, code=code, **fields)


BAD = {
    "a side stream that never joins": lambda p: with_code(p, *FORKED, streams=2, events=2),
    "no such stream": lambda p: with_code(p, replace(p.instructions[0], stream=1)),
    "no streams": lambda p: first_bucket(p, streams=0),
    "too many streams": lambda p: first_bucket(p, streams=1 << 40),
    "negative events": lambda p: first_bucket(p, events=-1),
    "more events than instructions": lambda p: first_bucket(p, events=1 << 40),
    "an event with an op": lambda p: with_code(p, replace(record(0, 0), op=0), events=1),
    "an event with results": lambda p: with_code(p, replace(record(0, 0), outs=(0,)), events=1),
    "an event that is a tensor": lambda p: with_code(p, replace(record(0, 0), args=(TensorArg(0),)), events=1),
    "an event that is no number": lambda p: with_code(p, replace(record(0, 0), args=(True,)), events=1),
    "an instruction without an op": lambda p: with_code(p, replace(p.instructions[0], op=-1)),
    "no place for the copy of an input": lambda p: first_bucket(p, input_offsets=()),
    "a copy beyond the arena": lambda p: first_bucket(p, input_offsets=(p.arena,)),
    "a copy before the arena": lambda p: first_bucket(p, input_offsets=(-64,)),
    "a copy at an odd place": lambda p: first_bucket(p, input_offsets=(1,)),
    "a result in a user input": lambda p: replace(p, instructions=(replace(p.instructions[0], outs=(0,)),)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_program_that_breaks_a_rule(spoil, name: str):
    with pytest.raises(MalformedError):
        spoil(BAD[name])


def test_a_tensor_beyond_its_input_is_refused(spoil):
    def change(program):
        bucket = program.entry_points[0].buckets[0]
        beyond = replace(bucket.tensors[0], offset=1 << 12)
        return first_bucket(program, tensors=(*bucket.tensors, beyond))

    with pytest.raises(MalformedError, match="within its input"):
        spoil(change)


def test_an_effect_on_a_user_input_is_refused(spoil):
    op = torch.ops.aten.zero_.default

    def change(program):
        program = replace(program, ops=tuple(Op(op.name(), str(op._schema)) for _ in program.ops))
        effect = replace(program.instructions[0], form=int(Form.EFFECT), args=(TensorArg(0),), kwargs=(), outs=())
        assert program.entry_points[0].buckets[0].tensors[0].space == Space.INPUT
        return replace(program, instructions=(effect,))

    with pytest.raises(MalformedError, match="would write into a user input"):
        spoil(change)

"""An artifact of several ranks is untrusted too: what its mesh and its shards say is checked before it is believed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import RECIPES

import aotair
from aotair.ops import npu as _ops  # noqa: F401 (defines them)
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.confine.arguments import check_arguments
from aotair_runtime.errors import MalformedError, RankError
from aotair_runtime.format import codec
from aotair_runtime.format.mesh import COLLECTIVES
from aotair_runtime.format.schema import Axis, Cut, Form, GroupArg, Instruction, Joined, Program, Shard, TensorArg


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aotair.build(RECIPES["shared"], tmp_path_factory.mktemp("mesh") / "shared.aotair")


def cut(shard: object) -> Callable[[Program], Program]:
    """The first constant that is cut, cut otherwise."""

    def change(program: Program) -> Program:
        at = next(n for n, constant in enumerate(program.constants) if constant.shard is not None)
        changed = replace(program.constants[at], shard=shard)
        return replace(program, constants=(*program.constants[:at], changed, *program.constants[at + 1 :]))

    return change


def group(to: object) -> Callable[[Program], Program]:
    """Every collective with another group."""

    def change(program: Program) -> Program:
        items = [
            replace(item, args=tuple(to if isinstance(arg, GroupArg) else arg for arg in item.args))
            for item in program.instructions
        ]
        return replace(program, instructions=tuple(items))

    return change


def group_for_a_number(program: Program) -> Program:
    """A group where a collective has its reduction."""
    items = [
        replace(item, args=(item.args[0], GroupArg(0), *item.args[2:]))
        if any(isinstance(arg, GroupArg) for arg in item.args)
        else item
        for item in program.instructions
    ]
    return replace(program, instructions=tuple(items))


WRONG = {
    "an axis that the mesh lacks": cut(Shard(1, 0, 2)),
    "a dimension that the constant lacks": cut(Shard(0, 7, 2)),
    "a negative dimension": cut(Shard(0, -1, 2)),
    "no parts": cut(Shard(0, 0, 0)),
    "more parts than ranks": cut(Shard(0, 0, 4)),
    "no blocks": cut(Shard(0, 0, 2, 0)),
    "blocks that do not fit": cut(Shard(0, 0, 2, 1 << 40)),
    "cut again along the same axis": cut(Shard(0, 0, 2, again=Cut(0, 0, 2))),
    "cut again along an axis that the mesh lacks": cut(Shard(0, 0, 2, again=Cut(1, 0, 2))),
    "cut again into no parts": cut(Shard(0, 0, 2, again=Cut(0, 0, 0))),
    "a group along no axis": group(GroupArg(3)),
    "a group along a negative axis": group(GroupArg(-1)),
    "a group by name": group("tp#0"),
    "a group for a reduction": group_for_a_number,
    "inputs of their own along an axis that the mesh lacks": lambda p: replace(p, own_inputs=(1,)),
    "inputs of their own along a negative axis": lambda p: replace(p, own_inputs=(-1,)),
    "inputs of their own along an axis twice": lambda p: replace(p, own_inputs=(0, 0)),
    "two axes of one name": lambda p: replace(p, mesh=(Axis("tp", 2), Axis("tp", 2))),
    "an axis without ranks": lambda p: replace(p, mesh=(Axis("tp", 0),)),
    "an axis of a billion ranks": lambda p: replace(p, mesh=(Axis("tp", 1 << 30),)),
    "a billion ranks in all": lambda p: replace(p, mesh=(Axis("tp", 2), *(Axis(f"a{n}", 1 << 10) for n in range(3)))),
    "an axis with an odd name": lambda p: replace(p, mesh=(Axis("\x1b[31m", 2),)),
    "nine axes": lambda p: replace(p, mesh=(Axis("tp", 2), *(Axis(f"a{n}", 1) for n in range(8)))),
    "no mesh at all": lambda p: replace(p, mesh=()),
    "a piece of a piece of a piece": lambda p: replace(p, joined=(*pieces("a", "b", "c"), Joined(weight(p), ("c",)))),
    "a piece that comes after what is made of it": lambda p: replace(
        p, joined=(Joined(weight(p), ("b",)), *pieces("b"))
    ),
    "pieces of nothing": lambda p: replace(p, joined=(*pieces("nothing"),)),
}


def pieces(*names: str) -> list[Joined]:
    """Each made of the one before."""
    return [Joined(name, (before,)) for before, name in zip(("x", *names), names)]


def weight(program: Program) -> str:
    """The name of one."""
    return next(constant.names[0][0] for constant in program.constants if constant.kind == "weight")


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_mesh_says_is_checked(shared: Path, tmp_path: Path, wrong: str):
    path = Path(shutil.copytree(shared, tmp_path / "spoilt.aotair"))
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(WRONG[wrong](program)))
    with pytest.raises((MalformedError, RankError)) as caught:
        open_artifact(path)
        aotair.load(path)
    assert isinstance(caught.value, MalformedError) or wrong.startswith("a group")


@pytest.mark.parametrize("op", COLLECTIVES["npu"][1])
@pytest.mark.parametrize("named", ["tp#0", GroupArg(0)], ids=["a text", "an axis"])
def test_a_product_that_meets_other_ranks_names_an_axis_alone(op: str, named: object):
    """Not a communicator of the process, which the file could otherwise meet."""
    found = getattr(torch.ops.npu, op).default
    more = (("world_size", 2),) if "world_size" in str(found._schema) else ()
    item = Instruction(0, Form.COPY, (TensorArg(0), TensorArg(1), named), more, (2,), "node", 0)
    if isinstance(named, GroupArg):
        check_arguments(item, found, "a bucket")
        item = replace(item, args=item.args[:2], kwargs=(("hcom", "tp#0"), *more))
    with pytest.raises(MalformedError, match=r"hcom of .* names no ranks"):
        check_arguments(item, found, "a bucket")

"""The prologue alone: programs that make derived constants, each once, planned and emitted like buckets."""

import pytest
import torch
from graphs import trace

from aotair.emit.emitter import Tables
from aotair.graph.derived import Derivation
from aotair.prologue import Derivations
from aotair_runtime.format.schema import Constant, Part, Prologue, Space

W, V = torch.randn(4, 6), torch.randn(6)
DESCRIBED = {
    "w": Constant("w", "float32", (4, 6), "weight", (("w",),)),
    "v": Constant("v", "float32", (6,), "weight", (("v",),)),
    "k": Constant("k", "float32", (6,), "fixed", (("k",),)),
}


def derivation(function) -> Derivation:
    return Derivation(trace(function, W, V).graph)


def reads(item: Derivation, *names: str) -> dict[str, str]:
    return dict(zip([node.name for node in item.graph.find_nodes(op="placeholder")], names))


def prologue(item: Derivation, *names: str, stored: tuple[str, ...] = ()) -> tuple[Prologue, Tables]:
    """That of one derivation whose constants a bucket reads, and `stored` ones too."""
    found, tables = Derivations(), Tables()
    for name in (*stored, *found.names_of(item, reads(item, *names))):
        tables.constants.number(name)
    return found.prologue(tables, DESCRIBED.__getitem__, 1.0, 64), tables


def code(tables: Tables, part: Part) -> list[str]:
    items = [tables.instructions.values()[number] for number in part.bucket.code]
    return [tables.ops.values()[item.op].name for item in items]


def _scaled(w, v):
    return (torch.cat([w * v, w]),)


def test_what_is_computed_twice_is_made_once():
    found = Derivations()
    one, same, other = derivation(_scaled), derivation(_scaled), derivation(lambda w, v: (torch.cat([w * v, w * 2]),))
    names = found.names_of(one, reads(one, "w", "v"))
    assert names == ("w:cat",)
    assert found.names_of(same, reads(same, "w", "v")) == names
    assert found.names_of(same, reads(same, "w", "k")) == ("w:cat.2",), "of another constant"
    assert found.names_of(other, reads(other, "w", "v")) == ("w:cat.3",), "by another op"


def test_a_derived_constant_is_described():
    found, item = Derivations(), derivation(lambda w, v: ((w * 2).to(torch.int8),))
    (name,) = found.names_of(item, reads(item, "w", "v"))
    assert found.constant(name) == Constant(name, "int8", (4, 6), "derived", ((name,),))
    assert found.constant("w") is None


def test_a_part_reads_sources_and_writes_what_it_makes():
    made, tables = prologue(derivation(_scaled), "w", "v")
    (part,) = made.parts
    assert tables.constants.values() == ["w:cat"] and made.sources == (DESCRIBED["w"], DESCRIBED["v"])
    assert (part.reads, part.makes) == ((1, 2), (0,))
    assert code(tables, part) == ["aten::mul.out", "aten::cat.out"]
    spaces = {placement.space for placement in part.bucket.tensors}
    assert spaces == {Space.CONSTANT, Space.CALLER, Space.ARENA} and part.bucket.outputs == ()
    assert made.arena == 128, "the product, and not the whole"


def test_what_buckets_read_too_is_no_source_and_what_no_checkpoint_has_is_stored():
    made, tables = prologue(derivation(_scaled), "w", "k", stored=("w",))
    assert tables.constants.values() == ["w", "w:cat", "k"] and made.sources == ()
    assert made.parts[0].reads == (0, 2)


def test_what_no_bucket_reads_is_not_made():
    found, tables, item = Derivations(), Tables(), derivation(_scaled)
    found.names_of(item, reads(item, "w", "v"))
    assert found.prologue(tables, DESCRIBED.__getitem__, 1.0, 64) == Prologue()
    assert tables.constants.values() == []


def _transposed(w, v):
    return ((w * v).t(),)


def _part_of_a_whole(w, v):
    whole = torch.cat([w, w])
    return (torch.ops.aten.add.Tensor(whole[:4], v),)


def _two_of_one(w, v):
    scale = w.abs().amax(1)
    return w / scale.unsqueeze(1), scale


@pytest.mark.parametrize("function", [_transposed, _part_of_a_whole, _two_of_one])
def test_each_result_has_memory_of_its_own_without_gaps(function):
    made, tables = prologue(derivation(function), "w", "v")
    (part,) = made.parts
    count = len(part.makes)
    inputs = [part.bucket.tensors[number] for number in part.bucket.inputs]
    assert [(item.space, item.index, item.offset) for item in inputs] == [(Space.CALLER, n, 0) for n in range(count)]
    for item in part.bucket.tensors:
        if item.space == Space.CALLER:
            layout = tables.layouts.values()[item.layout]
            whole = tables.layouts.values()[inputs[item.index].layout]
            reach = 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides))
            assert reach <= torch.Size(whole.shape).numel(), "nothing reaches beyond the constant"

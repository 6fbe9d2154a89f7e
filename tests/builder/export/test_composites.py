"""Composite ops are taken apart in the short way as in torch's own, but those that stay whole."""

import pytest
import torch
from torch.export import Dim, exported_program

from aotair.export import composites
from aotair.export.composites import taken_apart
from aotair.graph.kept_whole import KEPT_WHOLE

aten = torch.ops.aten
IS_MADE_OF = torch._C._dispatch_has_kernel_for_dispatch_key


class Model(torch.nn.Module):
    """Ops that stay whole, composite ones of several kinds, and writes."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(self.up(self.norm(x)))
        y = torch.einsum("nd,md->nm", y, y.matmul(y.t()).matmul(y)).softmax(-1).chunk(2, 0)[0]
        self.seen.add_(x.reshape(-1, 2, 4).flatten(1).sum(0))
        return torch.nn.functional.scaled_dot_product_attention(y[None], y[None], y[None]).tile(1, 2, 1)


def exported() -> torch.export.ExportedProgram:
    shapes = ({0: 2 * Dim("half", min=2, max=16)},)
    return torch.export.export(Model(), (torch.randn(6, 8),), dynamic_shapes=shapes, strict=False)


def text(program: torch.export.ExportedProgram) -> str:
    return f"{program.graph}\n{program.graph_signature}\n{program.range_constraints}"


def test_the_short_way_makes_the_graph_of_the_long_way(monkeypatch: pytest.MonkeyPatch):
    short = taken_apart(exported())
    monkeypatch.setattr(composites, "_ASKED", "what_no_torch_has")
    assert text(short) == text(taken_apart(exported()))


def test_what_stays_whole_alone_is_composite_and_nothing_is_written():
    program = taken_apart(exported())
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert {aten.linear.default, aten.layer_norm.default, aten.scaled_dot_product_attention.default} <= set(called)
    ops = [target for target in called if isinstance(target, torch._ops.OpOverload)]
    whole = [op for op in ops if IS_MADE_OF(op.name(), "CompositeImplicitAutograd")]
    assert {op._schema.name.removeprefix("aten::") for op in whole} <= KEPT_WHOLE | {"sym_size"}
    assert not any(op._schema.is_mutable for op in ops)
    assert program.graph_signature.buffers_to_mutate


def test_a_composite_op_that_is_defined_between_two_exports_is_taken_apart():
    taken_apart(exported())
    with torch.library._scoped_library("composites_test", "FRAGMENT") as library:
        library.define("linear(Tensor x) -> Tensor")
        library.impl("linear", lambda x: x.square() + 1, "CompositeImplicitAutograd")

        class Own(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.composites_test.linear(x)

        program = taken_apart(torch.export.export(Own(), (torch.randn(3),), strict=False))
        assert not [node for node in program.graph.nodes if "composites_test" in str(node.target)]


@pytest.mark.parametrize("fails", [False, True])
def test_torch_finds_all_its_ops_again_afterwards(monkeypatch: pytest.MonkeyPatch, fails: bool):
    before = getattr(exported_program, composites._ASKED)

    def refuse(*_: object) -> None:
        raise RuntimeError("refused")

    program = exported()
    if fails:
        monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", refuse)
        with pytest.raises(RuntimeError, match="refused"):
            taken_apart(program)
    else:
        taken_apart(program)
    assert getattr(exported_program, composites._ASKED) is before and len(before()) > 400

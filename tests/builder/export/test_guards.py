"""What torch.export assumed of sizes: asked for other sizes, and said in words with the model's line."""

import pytest
import sympy
import torch
from exports import entry_of, shaped

from aotair.export.export import export_at
from aotair.export.guards import Assumptions, Size, guard_lines, solved


class Split(torch.nn.Module):
    def forward(self, x):
        return sum(x.split(2, 0))


ROWS = shaped("n", 4)
N, M = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)


def test_sizes_are_solved_for_their_symbol():
    assert solved(N, 7) == (N, 7) and solved(2 * N + 1, 7) == (N, 3)
    assert solved(2 * N, 7) is None and solved(N * M, 6) is None and solved(N * N, 9) is None


def test_each_kind_of_assumption_is_asked():
    lines = {str(sympy.Ne(N, 3)): " (at here)"}
    found = Assumptions(("n", "m"), (Size(0, N), Size(1, 2 * M)), {}, {N: (2, 9)}, (sympy.Ne(N, 3),), lines)
    assert found.why_not((4, 6)) is None
    assert str(found.why_not((3, 6))) == "the graph of other sizes assumes Ne(n, 3) (at here)"
    assert "2 <= n <= 9" in str(found.why_not((1, 6))) and "m = 2*s1" in str(found.why_not((4, 5)))
    pinned = Assumptions(
        ("n",), (Size(0, 8),), {N: sympy.Integer(8)}, {}, (sympy.Eq(N, 8),), {"Eq(s0, 8)": " (at there)"}
    )
    assert pinned.why_not((8,)) is None
    assert str(pinned.why_not((4,))) == "the graph of other sizes assumes n = 8 (at there)"
    equal = Assumptions(("n", "m"), (Size(0, N), Size(1, N)))
    assert equal.why_not((3, 3)) is None and "m = n" in str(equal.why_not((3, 4)))


def test_what_cannot_be_decided_does_not_hold():
    assert Assumptions(("n",), (Size(0, N),), {}, {}, (sympy.Gt(M, 1),)).why_not((3,)) is not None


def test_torch_is_left_as_it_was():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    before = ShapeEnv._log_guard
    model = Split()
    export_at(model, entry_of(model, {"x": ROWS}, {"n": [2, 4, 8]}), (8,))
    with pytest.raises(RuntimeError, match="within"), guard_lines():
        raise RuntimeError("within")
    assert ShapeEnv._log_guard is before

"""What torch.export assumed of sizes: asked for other sizes, and said in words with the model's line."""

from pathlib import Path

import pytest
import sympy
import torch
from exports import entry_of, model_of, shaped
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aotair.export.export import export_at
from aotair.export.guards import Assumption, Assumptions, Size, assumptions_of, guard_lines, shape_env, solved


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


# ---- each assumption alone -------------------------------------------------------------------------------------------


def of(*sizes: Size, dims: tuple[str, ...] = ("n", "m"), **parts) -> Assumptions:
    return Assumptions(dims, sizes, **parts)


@pytest.mark.parametrize(
    ("size", "wanted", "found"),
    [
        (N, 0, (N, 0)),
        (3 * N, 9, (N, 3)),
        (3 * N, 10, None),
        (N - 2, 5, (N, 7)),
        (-N, -4, (N, 4)),
        (sympy.Integer(4), 4, None),  # no symbol
        (N / 2, 3, None),  # no whole slope
        (sympy.Mod(N, 3), 1, None),
        (N + sympy.Rational(1, 2), 3, None),
    ],
)
def test_a_symbol_has_the_value_that_makes_a_linear_size(size, wanted, found):
    assert solved(size, wanted) == found


def test_assumptions_say_what_they_assume_and_where():
    assert str(Assumption("n = 4", " (at model.py:3, in forward)")) == (
        "the graph of other sizes assumes n = 4 (at model.py:3, in forward)"
    )
    assert str(Assumption("n = 4", "")) == "the graph of other sizes assumes n = 4"


def test_without_symbols_the_sizes_are_what_is_assumed():
    found = assumptions_of([Size(0, 4), Size(1, 2)], ("n", "m"), None, {"a": "b"})
    assert found == Assumptions(("n", "m"), (Size(0, 4), Size(1, 2)))
    assert (
        found.why_not((4, 2)) is None
        and found.why_not((4, 3)).text == "m = 2"
        and found.why_not((5, 3)).text == "n = 4"
    )


def test_two_dimensions_of_one_symbol_are_equal():
    found = of(Size(0, N), Size(1, 2 * N))
    assert found.why_not((3, 6)) is None
    assert found.why_not((3, 7)).text == found.why_not((3, 4)).text == "m = 2*n"


@pytest.mark.parametrize(("sizes", "text"), [((2, 8), None), ((1, 8), "2 <= n <= 9"), ((10, 8), "2 <= n <= 9")])
def test_ranges_include_their_ends(sizes, text):
    found = of(Size(0, N), Size(1, 8), ranges={N: (sympy.Integer(2), sympy.Integer(9))})
    why = found.why_not(sizes)
    assert (why and why.text) == text
    assert of(Size(0, N), Size(1, 8), ranges={M: (2, 3)}).why_not((9, 8)) is None, "of a symbol that no size has"


def test_a_symbol_that_was_replaced_has_the_value_of_what_replaced_it():
    found = of(Size(0, N), Size(1, 8), replaced={M: 2 * N}, ranges={M: (2, 9)})
    assert found.why_not((4, 8)) is None and found.why_not((5, 8)).text == "2 <= s1 <= 9"
    unknown = of(Size(0, N), Size(1, 8), replaced={M: sympy.Symbol("s7") + 1}, ranges={M: (2, 9)})
    assert unknown.why_not((5, 8)) is None


def test_of_guards_that_fail_one_whose_line_is_known_is_named():
    first, second = sympy.Ne(N, 3), sympy.Lt(N, 3)
    found = of(Size(0, N), Size(1, 8), guards=(first, second), lines={str(second): " (at here)"})
    assert found.why_not((3, 8)) == Assumption("n < 3", " (at here)")
    assert of(Size(0, N), Size(1, 8), guards=(first, second)).why_not((3, 8)) == Assumption("Ne(n, 3)", "")
    assert found.why_not((2, 8)) is None


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (sympy.Eq(sympy.Mod(N, 2), 0), True),
        (sympy.Eq(sympy.Mod(N, 3), 0), False),
        (sympy.Ge(N, 4), True),
        (sympy.true, True),
        (sympy.false, False),
        (sympy.Integer(1), True),  # a number stands for whether it is zero
        (sympy.Integer(0), False),
        (sympy.Ge(N + M, 4), False),  # nobody knows
    ],
)
def test_a_guard_holds_where_it_is_known_to(guard, holds):
    found = of(Size(0, N), dims=("n",), guards=(guard,))
    assert (found.why_not((4,)) is None) == holds


def test_a_pinned_size_has_the_line_of_the_guard_that_pinned_it():
    guards = sympy.Eq(M, 3), sympy.Eq(N, 8), sympy.Ne(N, 0)
    lines = {"Eq(s1, 3)": " (at m)", "Eq(s0, 8)": " (at n)"}
    found = of(Size(0, 8), Size(1, M), replaced={N: sympy.Integer(8)}, guards=guards, lines=lines)
    assert found.why_not((4, 3)) == Assumption("n = 8", " (at n)")
    assert found.why_not((8, 4)) == Assumption("Eq(m, 3)", " (at m)")
    assert of(Size(0, 8), dims=("n",)).why_not((4,)) == Assumption("n = 8", "")


# ---- while torch traces ----------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_model():
    def forward(self, x):
        return x * 2 if x.shape[0] > 3 else x  # the guard

    model = model_of(forward)
    with guard_lines() as lines:
        torch.export.export(model, (torch.zeros(5, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    text = Path(__file__).read_text().splitlines()
    (line,) = {line for line in lines.values() if "in forward" in line}
    number = int(line.partition(":")[2].partition(",")[0])
    assert "# the guard" in text[number - 1] and f"(at {Path(__file__).name}:{number}, in forward)" in line


def test_the_first_line_of_a_guard_is_kept():
    env = ShapeEnv()
    symbol = env.create_unbacked_symint().node.expr
    with guard_lines() as lines:
        for _ in range(2):
            env._log_guard("eval", sympy.Eq(symbol, 3), forcing_spec=False)
    assert list(lines) == [str(sympy.Eq(symbol, 3))]


def test_the_symbols_of_a_tensor_come_from_somewhere_and_numbers_do_not():
    assert shape_env(torch.zeros(2, 3)) is None and shape_env(torch.tensor(1.0)) is None
    module = make_fx(lambda x: x + 1, tracing_mode="symbolic")(torch.zeros(5, 3))
    (x,) = module.graph.find_nodes(op="placeholder")
    assert shape_env(x.meta["val"]) is x.meta["val"].shape[0].node.shape_env

"""Sizes and structures as plain data: every kind of both, and what has no such form."""

import collections
import dataclasses
import itertools
import math
import re
from typing import NamedTuple

import pytest
import sympy
import torch
from exports import entry_of, exported, shaped
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions
from transformers.utils import ModelOutput

import aotair
from aotair.errors import UnsupportedError
from aotair.export.dims import Symbols, _expr, to_expr, to_tree
from aotair.export.export import export
from aotair_runtime.format.sizes import evaluate


def test_output_sizes_are_expressions_of_the_dimensions():
    _, result = exported("halves")
    (shape,) = result.outputs
    assert shape[0] == ("dim", 0) and shape[1] == 2
    for size in range(3, 40):
        assert evaluate(shape[2], (1, size)) == len(range(1, size, 2))


class Resize(torch.nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=self.factor, mode="bilinear")


@pytest.mark.parametrize("factor", [2, 0.5, 1.5, 0.75])
def test_sizes_that_are_scaled_and_rounded(factor, tmp_path):
    buckets = {"b": [1, 2], "h": [7, 9], "w": [8, 10]}
    given = {"model": Resize(factor), "inputs": {"x": shaped("b", 3, "h", "w")}, "buckets": buckets}
    model = aotair.load(aotair.build(out=tmp_path / "a.aotair", **given))
    for shape in ((1, 3, 7, 10), (2, 3, 9, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(model(x), Resize(factor)(x))


# ---- sizes -----------------------------------------------------------------------------------------------------------

N, M, STRAY = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1", "s9"))
SYMBOLS = Symbols({N: ("dim", 0), M: ("dim", 1)})


def expr(size: sympy.Expr):
    """What a size becomes, after checking that it has the same values."""
    found = _expr(size, SYMBOLS)
    for n, m in itertools.product(range(1, 9), range(1, 6)):
        # A floor of a product with a float is torch's own of the numbers; `ToFloat` and its like evaluate as such.
        want = size.subs({N: n, M: m}) if isinstance(size, sympy.Basic) else size
        assert evaluate(found, (n, m)) == int(want), (n, m, size)
    return found


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (sympy.Integer(7), 7),
        (N, ("dim", 0)),
        (N + 1, ("+", 1, ("dim", 0))),
        (N - 1, ("+", -1, ("dim", 0))),
        (2 * N, ("*", 2, ("dim", 0))),
        (N * M, ("*", ("dim", 0), ("dim", 1))),
        (N + 2 * M, ("+", ("dim", 0), ("*", 2, ("dim", 1)))),
        (N**3, ("*", ("dim", 0), ("dim", 0), ("dim", 0))),
        (functions.FloorDiv(N, 3), ("//", ("dim", 0), 3)),
        (functions.Mod(N, 3), ("%", ("dim", 0), 3)),
        (functions.PythonMod(N, 4), ("%", ("dim", 0), 4)),
        (sympy.Max(N, M), ("max", ("dim", 0), ("dim", 1))),
        (sympy.Min(N, 4), ("min", 4, ("dim", 0))),
        (functions.Max(N, 3), ("max", 3, ("dim", 0))),
        (functions.Min(M, N), ("min", ("dim", 0), ("dim", 1))),
    ],
    ids=str,
)
def test_each_size_has_its_form_and_its_values(size, found):
    assert expr(size) == found


def test_the_order_of_operands_does_not_hang_on_how_they_came():
    assert _expr(M + N, SYMBOLS) == _expr(N + M, SYMBOLS)
    assert _expr(sympy.Max(M, N), SYMBOLS) == _expr(sympy.Max(N, M), SYMBOLS)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (functions.CleanDiv(N, sympy.Integer(2)), ("//", ("dim", 0), 2)),
        (sympy.Rational(1, 2) * N * M, ("//", ("*", ("dim", 0), ("dim", 1)), 2)),
        (functions.TruncToInt(functions.ToFloat(N)), ("dim", 0)),
        (functions.TruncToInt(functions.IntTrueDiv(N, sympy.Integer(3))), ("//", ("dim", 0), 3)),
        (functions.FloorToInt(sympy.Float(1.5) * functions.ToFloat(N)), ("//", ("*", 3, ("dim", 0)), 2)),
        (functions.FloorToInt(sympy.Float(0.25) * functions.ToFloat(N)), ("//", ("dim", 0), 4)),
        (functions.TruncToInt(sympy.Float(2.0) * functions.ToFloat(N)), ("*", 2, ("dim", 0))),
        (functions.CeilToInt(sympy.Float(0.5) * functions.ToFloat(N)), ("//", ("+", ("dim", 0), 1), 2)),
        (functions.CeilToInt(functions.ToFloat(N)), ("dim", 0)),
    ],
    ids=str,
)
def test_sizes_that_are_divided_and_rounded(size, found):
    assert _expr(size, SYMBOLS) == found


@pytest.mark.parametrize("factor", [0.5, 1.5, 0.75, 2.0, 0.1 + 0.025])
@pytest.mark.parametrize("rounded", [functions.FloorToInt, functions.TruncToInt, functions.CeilToInt])
def test_a_factor_is_rounded_as_python_does(factor, rounded):
    found = _expr(rounded(sympy.Float(factor) * functions.ToFloat(N)), SYMBOLS)
    there = {functions.FloorToInt: math.floor, functions.TruncToInt: math.trunc, functions.CeilToInt: math.ceil}
    for n in range(1, 60):
        assert evaluate(found, (n, 1)) == there[rounded](factor * n)


@pytest.mark.parametrize("factor", [0.7, 0.29, 1.1, 1.12])
def test_a_factor_that_floating_point_rounds_to_another_size_is_refused(factor):
    """0.7 * 90 is 62.99999999999999: a model resizes it to 62, and no formula says so."""
    with pytest.raises(UnsupportedError, match=r"an output's size is made of ") as caught:
        _expr(functions.FloorToInt(sympy.Float(factor) * functions.ToFloat(N)), SYMBOLS)
    product, size, meant = re.fullmatch(r"(\S+) for a size of (\d+), where (\d+) is meant", caught.value.got).groups()
    assert float(product) == factor * int(size) != int(meant)


def test_only_sizes_that_calls_may_have_are_asked():
    rounded = functions.FloorToInt(sympy.Float(0.7) * functions.ToFloat(2 * N))
    for values in (range(1, 45), {46, 1000}, set()):
        found = _expr(rounded, Symbols({N: ("dim", 0)}, {N: values}))
        assert found == ("//", ("*", 7, ("*", 2, ("dim", 0))), 10)
        assert all(evaluate(found, (n,)) == math.floor(0.7 * (2 * n)) for n in values)
    with pytest.raises(UnsupportedError, match="is made of"):
        _expr(rounded, Symbols({N: ("dim", 0)}, {N: range(1, 46)}))
    with pytest.raises(UnsupportedError, match="is made of"):  # of two symbols any value is asked
        _expr(functions.FloorToInt(sympy.Float(0.7) * functions.ToFloat(N * M)), SYMBOLS)


def test_a_size_divided_by_a_size_is_the_dimension_that_it_always_is():
    """What `rows.view(batch, length, width)` makes of rows that were cut in two and put together again."""
    quotient = functions.FloorDiv(2 * functions.FloorDiv(N * M, 2), N)
    exprs = {N: ("dim", 0), M: ("dim", 1)}
    assert _expr(quotient, Symbols(exprs, {N: [2, 4], M: [1, 64]})) == ("dim", 1)
    for values in ({N: [1, 3], M: [1, 64]}, {N: [0, 2], M: [4]}, {N: [2]}, {N: range(100), M: range(100)}):
        with pytest.raises(UnsupportedError, match="a quotient of two sizes"):
            _expr(quotient, Symbols(exprs, values))


@pytest.mark.parametrize(
    "size", [functions.FloorDiv(N * M, M + 1), functions.CleanDiv(N, M), functions.Mod(N, M)], ids=str
)
def test_what_the_format_does_not_divide_by_is_refused(size):
    with pytest.raises(UnsupportedError, match="an output's size is"):
        _expr(size, SYMBOLS)


@pytest.mark.parametrize("buckets, pads, built", [([128], "any", False), ([89], "any", True), ([64, 128], None, True)])
def test_what_is_asked_are_the_sizes_that_buckets_serve(buckets, pads, built):
    job = entry_of(Resize(0.7), {"x": shaped(1, 3, "h", 7, pad=pads)}, {"h": buckets})
    if not built:
        with pytest.raises(UnsupportedError, match="is made of"):
            export(Resize(0.7), job)
        return
    ((_, _, height, _),) = export(Resize(0.7), job).outputs
    for size in buckets:
        assert evaluate(height, (size,)) == math.floor(0.7 * size)


def test_a_quotient_that_is_multiplied_is_rounded_twice():
    """1 / 49 * 49 is no 1 in floating point."""
    halves = functions.FloorToInt(sympy.Float(1.5) * functions.IntTrueDiv(N, sympy.Integer(4)))
    assert _expr(halves, SYMBOLS) == ("//", ("*", 3, ("dim", 0)), 8)
    with pytest.raises(UnsupportedError, match="is made of"):
        _expr(functions.FloorToInt(sympy.Float(49.0) * functions.IntTrueDiv(N, sympy.Integer(49))), SYMBOLS)


@pytest.mark.parametrize("size", [STRAY, STRAY + 1, sympy.sqrt(N), sympy.log(N), N**M, sympy.Pow(N, -1) + STRAY])
def test_what_is_no_such_size_is_refused(size):
    with pytest.raises(UnsupportedError, match=r"an output's size is ") as caught:
        _expr(size, SYMBOLS)
    assert caught.value.expected == "sums, products, floor divisions, minima and maxima of the dimensions"


@pytest.mark.parametrize(
    "inner",
    [
        sympy.Float(1 / 3) * functions.ToFloat(N) + 1,
        sympy.Float(-1.5) * functions.ToFloat(N),
        sympy.Float(0.1234567890123) * functions.ToFloat(N),
        functions.IntTrueDiv(N, M),
        sympy.sqrt(N),
    ],
)
def test_what_is_rounded_and_no_multiple_of_a_size_is_refused(inner):
    with pytest.raises(UnsupportedError, match="an output's size is made of ") as caught:
        _expr(functions.FloorToInt(inner, evaluate=False), SYMBOLS)
    assert "not a scale factor" in caught.value.fix


def test_numbers_are_numbers_already():
    assert to_expr(7, Symbols()) == 7 and to_expr(0, Symbols()) == 0


def test_a_size_of_a_traced_tensor_is_one_in_the_symbols_of_its_dimensions():
    module = make_fx(lambda x: x.repeat(2, 1), tracing_mode="symbolic")(torch.zeros(5, 3))
    (x,) = module.graph.find_nodes(op="placeholder")
    symbol = x.meta["val"].shape[0].node.expr
    (done,) = (node for node in module.graph.nodes if node.target is torch.ops.aten.repeat.default)
    assert to_expr(done.meta["val"].shape[0], Symbols({symbol: ("dim", 4)})) == ("*", 2, ("dim", 4))


# ---- structures ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Record:
    logits: object
    loss: object = None


@dataclasses.dataclass
class Output(ModelOutput):
    logits: object = None
    hidden: object = None


@dataclasses.dataclass
class Opaque:
    a: object


class Strange:
    def __init__(self, a):
        self.a = a


torch.export.register_dataclass(Record, serialized_type_name="test_dims.Record")
pytree.register_pytree_node(Strange, lambda v: ([v.a], None), lambda v, _: Strange(*v))


def tree(value):
    leaves, spec = pytree.tree_flatten(value)
    return to_tree(spec, [("tensor", number) for number in range(len(leaves))])


T0, T1, T2 = (("tensor", number) for number in range(3))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, T0),
        ((0, 0), ("tuple", T0, T1)),
        ([0], ("list", T0)),
        ((), ("tuple",)),
        ([[], ()], ("list", ("list",), ("tuple",))),
        ({"b": 0, "a": 0}, ("dict", ("b", "a"), T0, T1)),
        ({}, ("dict", ())),
        ({1: 0, 2: 0}, ("dict", (1, 2), T0, T1)),
        (collections.OrderedDict(z=0, y=0), ("dict", ("z", "y"), T0, T1)),
        (collections.defaultdict(list, {"k": 0}), ("dict", ("k",), T0)),
        (Pair(0, (0,)), ("named", "Pair", ("first", "second"), T0, ("tuple", T1))),
        (Record(0, 0), ("record", "Record", ("logits", "loss"), T0, T1)),
        ([{"x": [0, ()]}], ("list", ("dict", ("x",), ("list", T0, ("tuple",))))),
    ],
    ids=repr,
)
def test_each_structure_has_its_form(value, found):
    assert tree(value) == found


def test_what_torch_returns_by_name_is_a_named_tuple():
    found = tree(torch.zeros(2, 3).max(1))
    assert found == ("named", "max", ("values", "indices"), T0, T1)


def test_fields_that_hold_nothing_are_constants():
    """A record's field that is None is no leaf, and no child either where the record leaves it out."""
    assert tree(Output(logits=0)) == ("record", "Output", ("logits", "hidden"), T0, ("const", None))


def test_a_class_that_nobody_knows_the_fields_of_is_refused():
    with pytest.raises(UnsupportedError, match="the model returns a Strange") as caught:
        tree((0, Strange(0)))
    assert caught.value.expected == "tensors in tuples, lists, dicts or records"


def test_a_class_that_is_not_registered_is_a_leaf():
    assert tree(Opaque(0)) == T0

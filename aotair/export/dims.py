"""Sympy sizes and pytree structures, as the plain data of the format."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

import sympy
import torch
from torch.utils import _pytree
from torch.utils._sympy import functions

from aotair_runtime.format.schema import Expr, Operator, Tree

from ..errors import UnsupportedError

_CALLS = 1 << 12  # so many are tried at the most where a size is a quotient of two
_SIZES = 1 << 16  # as many are tried where a size is rounded and may have any value
# Of what Expr and Tree may be, the kinds that are made of several of their own.
_Call: TypeAlias = "tuple[Operator, Expr, *tuple[Expr, ...]]"
_Items: TypeAlias = "tuple[Literal['tuple', 'list'], *tuple[Tree, ...]]"
_Members: TypeAlias = "tuple[Literal['dict'], tuple[str | int, ...], *tuple[Tree, ...]]"


@dataclasses.dataclass(frozen=True)
class Symbols:
    """What is known of symbols: the schema.Expr of each, and, as far as that is known, the values that it may have."""

    exprs: Mapping[sympy.Symbol, Expr] = dataclasses.field(default_factory=dict)
    values: Mapping[sympy.Symbol, Collection[int]] = dataclasses.field(default_factory=dict)

    def values_of(self, size: sympy.Expr) -> Collection[int]:
        """Those that a size may have."""
        (symbol, *others) = size.free_symbols or (None,)
        if others or symbol not in self.values:
            return range(_SIZES)
        return {int(size.xreplace({symbol: sympy.Integer(value)})) for value in self.values[symbol]}


def to_expr(size: int | torch.SymInt, symbols: Symbols) -> Expr:
    """A size as a schema.Expr. Raises UnsupportedError."""
    return int(size) if not isinstance(size, torch.SymInt) else _expr(size.node.expr, symbols)


def _expr(expr: sympy.Expr, symbols: Symbols) -> Expr:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol and expr in symbols.exprs:
        return symbols.exprs[expr]
    if isinstance(expr, sympy.Mul):
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            return ("//", _expr(numerator, symbols), int(denominator))
        return _call("*", _sorted(expr), symbols)
    if isinstance(expr, sympy.Add):
        return _call("+", _sorted(expr), symbols)
    if isinstance(expr, (functions.FloorDiv, functions.CleanDiv)):
        return _call("//", expr.args, symbols) if expr.args[1].is_Integer else _one_of(expr, symbols)
    if isinstance(expr, (functions.Mod, functions.PythonMod)) and expr.args[1].is_Integer:
        return _call("%", expr.args, symbols)
    if isinstance(expr, (functions.Max, sympy.Max)):
        return _call("max", _sorted(expr), symbols)
    if isinstance(expr, (functions.Min, sympy.Min)):
        return _call("min", _sorted(expr), symbols)
    if isinstance(expr, (functions.TruncToInt, functions.FloorToInt, functions.CeilToInt)):
        size, ratio = _ratio(expr.args[0], symbols)
        found, divisor = _expr(size, symbols), ratio.denominator
        product: Expr = found if ratio.numerator == 1 else ("*", ratio.numerator, found)
        up = divisor - 1 if isinstance(expr, functions.CeilToInt) else 0
        return ("//", ("+", product, up) if up else product, divisor) if divisor > 1 else product
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return _call("*", [expr.base] * int(expr.exp), symbols) if expr.exp > 1 else _expr(expr.base, symbols)
    raise UnsupportedError(
        f"an output's size is {expr}", expected="sums, products, floor divisions, minima and maxima of the dimensions"
    )


def _one_of(quotient: sympy.Expr, symbols: Symbols) -> Expr:
    """The dimension that a size divided by another size always is. Raises UnsupportedError where there is none."""
    parts = sorted(quotient.free_symbols, key=str)
    if all(part in symbols.exprs and part in symbols.values for part in parts):
        calls = [dict(zip(parts, map(sympy.Integer, call))) for call in _calls(parts, symbols)]
        for part in parts if calls else ():
            if all(_divides(quotient, call) and quotient.xreplace(call) == call[part] for call in calls):
                return symbols.exprs[part]
    raise UnsupportedError(
        f"an output's size is {quotient}, a quotient of two sizes",
        expected="a dimension, or a quotient of one and a number",
        fix="say the size by a dimension that an input has, and not by one that it is divided by",
    )


def _divides(quotient: sympy.Expr, call: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    return bool(quotient.args[1].xreplace(call) > 0)


def _calls(parts: Sequence[sympy.Symbol], symbols: Symbols) -> list[tuple[int, ...]]:
    """The values that sizes may have together; none where these are too many to try."""
    values = [symbols.values[part] for part in parts]
    return list(itertools.product(*values)) if math.prod(map(len, values)) <= _CALLS else []


def _ratio(expr: sympy.Expr, symbols: Symbols) -> tuple[sympy.Expr, Fraction]:
    """A product of a size and of numbers that are not whole, as the size and a fraction. Raises UnsupportedError where
    a model that computes it in floating point gets another size for some."""
    factors, inner = [], expr
    while isinstance(inner, sympy.Mul) and len(inner.args) == 2 and inner.args[0].is_Float and inner.args[0] > 0:
        factors.append(float(inner.args[0]))
        inner = inner.args[1]
    got = ""
    if isinstance(inner, functions.ToFloat) or _is_divided(inner):
        by = 1 if isinstance(inner, functions.ToFloat) else int(inner.args[1])
        ratio = Fraction(1, by)
        for factor in factors:
            ratio *= Fraction(factor).limit_denominator(1 << 16)
        # Only where the product is whole can an error of rounding reach the next size.
        whole = (size for size in symbols.values_of(inner.args[0]) if size % ratio.denominator == 0)
        wrong = next((size for size in whole if _floating(size / by, factors) != ratio * size), None)
        if wrong is None:
            return inner.args[0], ratio
        got = f"{_floating(wrong / by, factors)} for a size of {wrong}, where {ratio * wrong} is meant"
    raise UnsupportedError(
        f"an output's size is made of {expr}",
        expected="a size times a number, rounded",
        got=got,
        fix="give the size, and not a scale factor, where the model resizes",
    )


def _is_divided(expr: sympy.Expr) -> bool:
    return isinstance(expr, functions.IntTrueDiv) and bool(expr.args[1].is_Integer) and bool(expr.args[1] > 0)


def _floating(size: float, factors: Sequence[float]) -> float:
    """The product as the model computes it, the innermost factor first."""
    for factor in reversed(factors):
        size = factor * size
    return size


def _call(operator: Operator, args: Sequence[sympy.Expr], symbols: Symbols) -> Expr:
    found = tuple(_expr(arg, symbols) for arg in args)
    call: _Call = (operator, found[0], *found[1:])
    return call


def _sorted(expr: sympy.Expr) -> list[sympy.Expr]:
    """The operands, in an order that does not hang on how sympy came to them."""
    return sorted(expr.args, key=sympy.default_sort_key)


def to_tree(spec: _pytree.TreeSpec, leaves: Sequence[Tree]) -> Tree:
    """A pytree's structure as a schema.Tree, with `leaves` in order. Raises UnsupportedError."""
    rest = iter(leaves)
    return _tree(spec, rest)


def _tree(spec: _pytree.TreeSpec, leaves: Iterator[Tree]) -> Tree:
    if spec.is_leaf():
        return next(leaves)
    below = spec.children() if hasattr(spec, "children") else spec.children_specs  # a method since torch 2.10
    children = tuple(_tree(child, leaves) for child in below)
    kind, context = spec.type, spec.context
    if kind is tuple or kind is list:
        items: _Items = ("tuple" if kind is tuple else "list", *children)
        return items
    if kind is dict or kind.__name__ in ("OrderedDict", "defaultdict"):
        keys = context[1] if kind.__name__ == "defaultdict" else context
        members: _Members = ("dict", tuple(keys), *children)
        return members
    if _pytree.is_structseq_class(kind) or hasattr(kind, "_fields") or hasattr(context, "_fields"):
        named = context if hasattr(context, "_fields") else kind
        fields = getattr(named, "_fields", None) or named.__match_args__
        return ("named", named.__name__, tuple(fields), *children)
    names = _field_names(kind, context)
    if names is None or len(names) != len(children):
        raise UnsupportedError(
            f"the model returns a {kind.__name__}", expected="tensors in tuples, lists, dicts or records"
        )
    absent = [f.name for f in dataclasses.fields(kind) if f.name not in names] if dataclasses.is_dataclass(kind) else []
    defaults: tuple[Tree, ...] = (("const", None),) * len(absent)
    return ("record", kind.__name__, (*names, *absent), *children, *defaults)


def _field_names(kind: type, context: object) -> Sequence[str] | None:
    """The names of a dataclass's or model output's fields, from how pytree remembers it."""
    for part in context if isinstance(context, (tuple, list)) else ():
        if isinstance(part, (tuple, list)) and all(isinstance(name, str) for name in part):
            return part
    if isinstance(context, (tuple, list)) and all(isinstance(name, str) for name in context):
        return context
    return None

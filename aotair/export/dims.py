"""Sympy sizes and pytree structures, as the plain data of the format."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

import sympy
import torch
from torch.utils import _pytree
from torch.utils._sympy import functions

from aotair_runtime.format.schema import Expr, Operator, Tree

from ..errors import UnsupportedError

# Of what Expr and Tree may be, the kinds that are made of several of their own.
_Call: TypeAlias = "tuple[Operator, Expr, *tuple[Expr, ...]]"
_Items: TypeAlias = "tuple[Literal['tuple', 'list'], *tuple[Tree, ...]]"
_Members: TypeAlias = "tuple[Literal['dict'], tuple[str | int, ...], *tuple[Tree, ...]]"


def to_expr(size: int | torch.SymInt, symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
    """A size as a schema.Expr, where `symbols` gives that of each symbol. Raises UnsupportedError."""
    return int(size) if not isinstance(size, torch.SymInt) else _expr(size.node.expr, symbols)


def _expr(expr: sympy.Expr, symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol and expr in symbols:
        return symbols[expr]
    if isinstance(expr, sympy.Mul):
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            return ("//", _expr(numerator, symbols), int(denominator))
        return _call("*", _sorted(expr), symbols)
    if isinstance(expr, sympy.Add):
        return _call("+", _sorted(expr), symbols)
    if isinstance(expr, (functions.FloorDiv, functions.CleanDiv)):
        return _call("//", expr.args, symbols)
    if isinstance(expr, (functions.Mod, functions.PythonMod)):
        return _call("%", expr.args, symbols)
    if isinstance(expr, (functions.Max, sympy.Max)):
        return _call("max", _sorted(expr), symbols)
    if isinstance(expr, (functions.Min, sympy.Min)):
        return _call("min", _sorted(expr), symbols)
    if isinstance(expr, (functions.TruncToInt, functions.FloorToInt, functions.CeilToInt)):
        product, divisor = _ratio(expr.args[0], symbols)
        up = divisor - 1 if isinstance(expr, functions.CeilToInt) else 0
        return ("//", ("+", product, up) if up else product, divisor) if divisor > 1 else product
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return _call("*", [expr.base] * int(expr.exp), symbols) if expr.exp > 1 else _expr(expr.base, symbols)
    raise UnsupportedError(
        f"an output's size is {expr}", expected="sums, products, floor divisions, minima and maxima of the dimensions"
    )


def _ratio(expr: sympy.Expr, symbols: Mapping[sympy.Symbol, Expr]) -> tuple[Expr, int]:
    """A product of a size and a number that is not whole, as a size and a divisor."""
    if isinstance(expr, functions.ToFloat):
        return _expr(expr.args[0], symbols), 1
    if isinstance(expr, functions.IntTrueDiv) and expr.args[1].is_Integer and expr.args[1] > 0:
        return _expr(expr.args[0], symbols), int(expr.args[1])
    if isinstance(expr, sympy.Mul) and len(expr.args) == 2 and expr.args[0].is_Float and expr.args[0] > 0:
        factor = Fraction(float(expr.args[0])).limit_denominator(1 << 16)
        if float(factor) == float(expr.args[0]):
            size, divisor = _ratio(expr.args[1], symbols)
            return (size if factor.numerator == 1 else ("*", factor.numerator, size)), divisor * factor.denominator
    raise UnsupportedError(
        f"an output's size is made of {expr}",
        expected="a size times a number, rounded",
        fix="give the size, and not a scale factor, where the model resizes",
    )


def _call(operator: Operator, args: Sequence[sympy.Expr], symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
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
    children = tuple(_tree(child, leaves) for child in spec.children())
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

"""Sizes as expressions of the dynamic dimensions: what they come to, and how they and buckets are written."""

from collections.abc import Callable, Sequence

from .schema import EntryPoint, Expr

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def evaluate(expr: Expr, sizes: Sequence[int]) -> int:
    """The value of a size expression (schema.Expr) where dimension i has the size `sizes[i]`."""
    if isinstance(expr, int):
        return expr
    if expr[0] == "dim":
        return sizes[expr[1]]
    operator, first, *others = expr
    value = evaluate(first, sizes)
    for operand in others:
        value = _OPERATORS[operator](value, evaluate(operand, sizes))
    return value


def describe(entry: EntryPoint, sizes: Sequence[int]) -> str:
    """`batch=8, seq=64`, or `static` where nothing is dynamic."""
    return ", ".join(f"{dim.name}={size}" for dim, size in zip(entry.dims, sizes)) or "static"


def shape_text(entry: EntryPoint, shape: Sequence[Expr]) -> str:
    """`[batch, seq, 384]` for the shape of an input or output."""
    return "[" + ", ".join(_expr_text(entry, expr) for expr in shape) + "]"


def _expr_text(entry: EntryPoint, expr: Expr) -> str:
    if isinstance(expr, int):
        return str(expr)
    if expr[0] == "dim":
        return entry.dims[expr[1]].name
    operator, *operands = expr
    texts = [_expr_text(entry, operand) for operand in operands]
    return f"{operator}({', '.join(texts)})" if operator in ("min", "max") else "(" + f" {operator} ".join(texts) + ")"

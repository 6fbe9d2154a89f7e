"""Sizes as expressions of the dynamic dimensions: what they come to, and how they and buckets are written."""

from collections.abc import Sequence

from .schema import EntryPoint

_OPERATORS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def evaluate(expr: object, sizes: Sequence[int]) -> int:
    """The value of a size expression (schema.Expr) where dimension i has the size `sizes[i]`."""
    if isinstance(expr, int):
        return expr
    operator, *operands = expr
    if operator == "dim":
        return sizes[operands[0]]
    value = evaluate(operands[0], sizes)
    for operand in operands[1:]:
        value = _OPERATORS[operator](value, evaluate(operand, sizes))
    return value


def describe(entry: EntryPoint, sizes: Sequence[int]) -> str:
    """`batch=8, seq=64`, or `static` where nothing is dynamic."""
    return ", ".join(f"{dim.name}={size}" for dim, size in zip(entry.dims, sizes)) or "static"


def shape_text(entry: EntryPoint, shape: Sequence[object]) -> str:
    """`[batch, seq, 384]` for the shape of an input or output."""
    return "[" + ", ".join(_expr_text(entry, expr) for expr in shape) + "]"


def _expr_text(entry: EntryPoint, expr: object) -> str:
    if isinstance(expr, int):
        return str(expr)
    operator, *operands = expr
    if operator == "dim":
        return entry.dims[operands[0]].name
    texts = [_expr_text(entry, operand) for operand in operands]
    return f"{operator}({', '.join(texts)})" if operator in ("min", "max") else "(" + f" {operator} ".join(texts) + ")"

"""A graph as stable text: one line a node, the same for the same graph in any process."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.fx.node import Argument

if TYPE_CHECKING:
    import sympy


def show(module: torch.fx.GraphModule) -> str:
    """The graph's nodes in order, with dtypes and shapes: `add: float32[s0, 4] = aten.add.Tensor(x, 1)`.

    A node on a side stream ends in `# stream 1`; the others run on the main one.
    Symbols are renamed in the order of their appearance, so that the text does not depend on torch's numbering.
    """
    return "\n".join(shown_lines(module)) + "\n"


def shown_lines(module: torch.fx.GraphModule) -> list[str]:
    """The same, a line for each node."""
    symbols = _Symbols()
    return [_line(node, symbols) + _stream(node) for node in module.graph.nodes]


class _Symbols:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._texts: dict[object, str] = {}  # by expression: to write one takes long

    def text(self, size: int | torch.SymInt) -> str:
        if not isinstance(size, torch.SymInt):
            return str(size)
        expr = size.node.expr
        if expr not in self._texts:
            self._texts[expr] = self._written(expr)
        return self._texts[expr]

    def _written(self, expr: "sympy.Expr") -> str:
        for symbol in sorted(expr.free_symbols, key=str):
            self._names.setdefault(str(symbol), f"n{len(self._names)}")
        import sympy

        return str(expr.xreplace({s: sympy.Symbol(self._names[str(s)], integer=True) for s in expr.free_symbols}))


def _line(node: torch.fx.Node, symbols: _Symbols) -> str:
    kind = _type_text(node.meta.get("val"), symbols)
    if node.op == "placeholder":
        return f"{node.name}: {kind}"
    if node.op == "output":
        return f"return {_arg_text(node.args[0])}"
    args = [_arg_text(arg) for arg in node.args] + [f"{name}={_arg_text(arg)}" for name, arg in node.kwargs.items()]
    return f"{node.name}: {kind} = {target_name(node)}({', '.join(args)})"


def _stream(node: torch.fx.Node) -> str:
    """What the pass `streams` found; before it, the scopes say it."""
    stream = node.meta.get("stream", 0)
    return f"  # stream {stream}" if stream else ""


def position(node: torch.fx.Node) -> int | None:
    """The number of the node's line in `show`, from 1; nothing for one that is gone."""
    return None if node._erased else 1 + list(node.graph.nodes).index(node)


def target_name(node: torch.fx.Node) -> str:
    """`aten.add.Tensor`, `getitem`, …"""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def _type_text(value: object, symbols: _Symbols) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(symbols.text(size) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_type_text(item, symbols) for item in value) + ")"
    if isinstance(value, torch.SymInt):
        return f"size {symbols.text(value)}"
    return type(value).__name__


def _arg_text(arg: Argument) -> str:
    if isinstance(arg, torch.fx.Node):
        return arg.name
    if isinstance(arg, (tuple, list)):
        return "[" + ", ".join(map(_arg_text, arg)) + "]"
    if isinstance(arg, Mapping):
        return "{" + ", ".join(f"{key}: {_arg_text(value)}" for key, value in arg.items()) + "}"
    return repr(arg) if not isinstance(arg, (torch.dtype, torch.device)) else str(arg).removeprefix("torch.")

"""Linear layers, norms and attention, put together again where tracing has taken them apart: passes and kernels look
for them whole, and what a kernel of this machine makes of attention lies as no other does."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node

_aten = torch.ops.aten


def recompose(graph: torch.fx.Graph) -> None:
    """In place; what has other uses than within such a layer stays as it is."""
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target is _aten.view.default:
            _linear(graph, node)
        elif node.target is operator.getitem and node.args[1] == 0:
            _first_result(graph, node)
        elif node.target is _aten.mul.Tensor:
            _rms_norm(graph, node)
    graph.eliminate_dead_code()


def _linear(graph: torch.fx.Graph, last: Node) -> None:
    """`view(addmm(bias, view(x, [rows, inputs]), t(weight)), [..., outputs])`, or with `mm`."""
    product: Any = last.args[0]
    if product.target not in (_aten.addmm.default, _aten.mm.default) or product.kwargs:
        return
    *bias, flat, turned = product.args
    if not _calls(flat, _aten.view.default) or not _calls(turned, _aten.t.default):
        return
    x, weight = flat.args[0], turned.args[0]
    shape = [*x.meta["val"].shape[:-1], weight.meta["val"].shape[0]]
    if x.meta["val"].shape[-1] == weight.meta["val"].shape[1] and _same(shape, last.meta["val"].shape):
        _put(graph, last, _aten.linear.default, (x, weight, *bias))


def _first_result(graph: torch.fx.Graph, first: Node) -> None:
    """Of a norm or an attention, of which nobody takes the other results."""
    made: Any = first.args[0]
    if len(made.users) != 1:
        return
    if made.target is _aten.native_layer_norm.default:
        _put(graph, first, _aten.layer_norm.default, made.args)
    elif made.target is _aten._scaled_dot_product_flash_attention_for_cpu.default:
        query, key, value, *rest = made.args
        dropout = rest[0] if rest else 0.0
        causal = rest[1] if len(rest) > 1 else False
        args = (query, key, value, made.kwargs.get("attn_mask"), dropout, causal)
        words = {"scale": made.kwargs["scale"]} if made.kwargs.get("scale") is not None else {}
        _put(graph, first, _aten.scaled_dot_product_attention.default, args, words)


def _rms_norm(graph: torch.fx.Graph, last: Node) -> None:
    """`x * rsqrt(mean(x ** 2) + eps) * weight`, over the last dimension, with torch's own write into the mean."""
    chain, ops = (
        [last],
        (_aten.mul.Tensor, _aten.rsqrt.default, _aten.add_.Scalar, _aten.mean.dim, _aten.pow.Tensor_Scalar),
    )
    for place, op in zip((0, 1, 0, 0, 0), ops, strict=True):
        inner: Any = chain[-1].args[place]
        if not _calls(inner, op):
            return
        chain.append(inner)
    _, scaled, _, shifted, mean, square = chain
    x: Any = scaled.args[0]
    weight: Any = last.args[1]
    dims = x.meta["val"].dim()
    if square.args != (x, 2) or mean.args[1:] != ([dims - 1], True) or not isinstance(weight, Node):
        return
    if weight.meta["val"].shape == x.meta["val"].shape[-1:]:
        _put(graph, last, _aten.rms_norm.default, (x, [*weight.meta["val"].shape], weight, shifted.args[1]))


def _calls(node: object, op: torch._ops.OpOverload) -> bool:
    return isinstance(node, Node) and node.target is op


def _same(shape: Sequence[object], other: Sequence[object]) -> bool:
    return len(shape) == len(other) and all(statically_known_true(a == b) for a, b in zip(shape, other, strict=True))


def _put(
    graph: torch.fx.Graph,
    old: Node,
    op: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> None:
    with graph.inserting_before(old):
        new = graph.call_function(op, args, kwargs or {})
    new.meta.update(old.meta)
    old.replace_all_uses_with(new)
    graph.erase_node(old)

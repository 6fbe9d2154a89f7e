"""Products with weights in bfloat16, the rest in float32: `config.experimental_config.precision: bf16`.

A linear layer of float32 reads its input and its weight in bfloat16, sums in float32 as kernels do, and its result is
float32 again. The weight in bfloat16 follows from the checkpoint's, and is stored instead of it. What lies between two
such products and only moves numbers, or maps each by itself in a way that kernels of bfloat16 compute in float32, reads
and writes bfloat16 without a detour; so does attention whose queries, keys and values come from such products: its
softmax is computed in float32 in any dtype. Norms, sums of residuals, and all that is not named here stay in float32.

Left alone: what is written over, which may be another when it is read; weights that something else reads, which would
be stored twice; small ones, whose products cost less than casts; attention over other keys, as those of a cache, or
with a mask of numbers, which bfloat16 would round.
"""

import functools
from collections.abc import Container, Iterable, Sequence

import torch
from torch.fx.node import Argument, Node

from ..graph.alias import base, root, why_written, written_roots
from ..graph.derived import is_constant
from ..graph.layers import Writer
from ..graph.operand import op_of, operand
from .edits import Edits
from .fold_constants import constant_nodes

_aten = torch.ops.aten
_COPY, _NARROW, _WIDE = _aten._to_copy.default, torch.bfloat16, torch.float32
_LEAST = 1 << 15  # numbers of a weight
_ATTENTION = _aten.scaled_dot_product_attention.default
# Where the weight of a product is, among its arguments; all of them are tensors.
_WEIGHTS = {_aten.linear.default: 1, _aten.mm.default: 1, _aten.addmm.default: 2}
# What maps each number by itself, in float32 also where it is bfloat16, or is a copy.
_SINGLE = frozenset(
    {
        _aten.gelu.default,
        _aten.relu.default,
        _aten.silu.default,
        _aten.tanh.default,
        _aten.sigmoid.default,
        _aten.clone.default,
    }
)


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph, casts = module.graph, dict[Node, Node]()
    products = [node for node in graph.nodes if _is_product(node)]
    constants, written = constant_nodes(graph), written_roots(graph)
    reasons = {node: why_written(node, written) or _why_not(_weight(node), products, constants) for node in products}
    for node, why in reasons.items():
        if why:
            edits.declined(node, why)
        elif edits.may(node, "computed in bfloat16"):
            _narrowed(node, casts)
    _go_through(graph, written)
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        if node.meta["val"].dtype != _WIDE:
            continue
        if why := why_written(node, written) or _why_not_attention(node):
            edits.declined(node, why)
        elif edits.may(node, "computed in bfloat16"):
            _narrowed(node, casts)
    _go_through(graph, written)


def _is_product(node: Node) -> bool:
    if node.op != "call_function" or node.target not in _WEIGHTS or node.kwargs or node.meta["val"].dtype != _WIDE:
        return False
    return all(isinstance(arg, Node) for arg in node.args if arg is not None)


def _weight(node: Node) -> Node:
    return operand(node, _WEIGHTS[op_of(node)])


def _why_not(weight: Node, products: Sequence[Node], constants: set[Node]) -> str:
    """Why a product with this weight stays in float32; empty where it does not."""
    if weight not in constants:
        return f"{weight.name} depends on the call"
    numbers = weight.meta["val"].numel()
    if not isinstance(numbers, int) or numbers < _LEAST:
        return f"{weight.name} has {numbers} numbers: casts would take longer than the product"
    others = [user.name for user in _readers(root(weight)) if user not in products]
    return f"{root(weight).name} is read by {others[0]} too, and would be stored twice" if others else ""


def _readers(node: Node) -> Iterable[Node]:
    """What reads a value, through views."""
    for user in node.users:
        yield from _readers(user) if base(user) is node else (user,)


def _why_not_attention(node: Node) -> str:
    """Why attention stays in float32; empty where queries, keys and values are products' results, moved at most."""
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    if isinstance(mask, Node) and mask.meta["val"].dtype != torch.bool:
        return f"its mask {mask.name} has numbers, which bfloat16 would round"
    others = [one.name for one in map(functools.partial(operand, node), range(3)) if _widened(root(one)) is None]
    return f"{others[0]} is no result of a product in bfloat16" if others else ""


def _narrowed(node: Node, casts: dict[Node, Node]) -> None:
    """Put the call over bfloat16 in the place of a call over float32."""
    found: list[Argument] = []
    for arg in node.args:
        is_wide = isinstance(arg, Node) and arg.meta["val"].dtype == _WIDE
        found.append(_cast(arg, node, casts) if is_wide and isinstance(arg, Node) else arg)
    write = Writer(node, node, set())
    made = write.call(op_of(node), *found, **node.kwargs)
    node.replace_all_uses_with(write.call(_COPY, made, dtype=_WIDE))
    node.graph.erase_node(node)


def _cast(node: Node, user: Node, casts: dict[Node, Node]) -> Node:
    """A value in bfloat16, cast once for all that read it; of a view of a constant the same view of the cast one, as
    kernels that pack weights look for."""
    if node not in casts or casts[node]._erased:
        place = node.next
        while place.op == "placeholder":
            place = place.next
        write, source = Writer(place, user, set()), base(node)
        if source is not None and source is node.args[0] and is_constant(root(node)):
            casts[node] = write.call(op_of(node), _cast(source, user, casts), *node.args[1:], **node.kwargs)
        else:
            casts[node] = write.call(_COPY, node, dtype=_NARROW)
    return casts[node]


# ---- between two products --------------------------------------------------------------------------------------------


def _go_through(graph: torch.fx.Graph, written: Container[Node]) -> None:
    """What is widened, moved or mapped, and narrowed again, is moved or mapped as it is."""
    found = True
    while found:
        found = False
        for node in graph.find_nodes(op="call_function", target=_COPY):
            if node._erased or not _is_cast(node, _NARROW):
                continue
            if (other := _as_it_is(operand(node), node, written)) is not None:
                node.replace_all_uses_with(other)
                _erase_unread(node)
                found = True


def _erase_unread(node: Node) -> None:
    """Let go of a value that nobody reads, and of what only it read: casts, views and maps, which do nothing else."""
    pure = _is_cast(node, _NARROW) or _is_cast(node, _WIDE) or node.target in _SINGLE or base(node) is not None
    if node.users or node.op != "call_function" or not pure:
        return
    inputs = node.all_input_nodes
    node.graph.erase_node(node)
    for one in inputs:
        _erase_unread(one)


def _as_it_is(node: Node, place: Node, written: Container[Node]) -> Node | None:
    """What stands in bfloat16, before `place`, for a value of float32: what it was before it was widened, or what
    follows from that."""
    if root(node) in written:
        return None
    if (source := _widened(node)) is not None:
        return None if root(source) in written else source
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    is_view = base(node) is node.args[0]
    # A map that others read in float32 would be computed twice; of a view that costs nothing.
    if not is_view and (node.target not in _SINGLE or len(node.users) > 1):
        return None
    if any(arg is not node.args[0] and isinstance(arg.meta["val"], torch.Tensor) for arg in node.all_input_nodes):
        return None
    source = _as_it_is(node.args[0], place, written)
    return (
        None if source is None else Writer(place, node, set()).call(op_of(node), source, *node.args[1:], **node.kwargs)
    )


def _widened(node: Node) -> Node | None:
    """The value of bfloat16 that a node widens."""
    return operand(node) if _is_cast(node, _WIDE) and operand(node).meta["val"].dtype == _NARROW else None


def _is_cast(node: Node, kind: torch.dtype) -> bool:
    return node.target is _COPY and dict(node.kwargs) == {"dtype": kind}

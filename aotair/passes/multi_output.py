"""Ops with several results of which the last are new values of arguments, and the in-place forms that write those.

An in-place form returns the other results alone: a `getitem` of one of those keeps its number, or is the single result
itself, and a `getitem` of a new value is the argument that was written.
"""

import operator
from dataclasses import dataclass

import torch
from torch.fx.node import Node

from ..graph.operand import operand


@dataclass(frozen=True)
class InplaceForm:
    """`inplace` is the op to call instead; `mutated` are the positions of the arguments whose new values are the last
    results, in their order."""

    inplace: str
    mutated: tuple[int, ...]


InplaceCall = tuple[torch._ops.OpOverload, tuple[int, ...]]  # an in-place op, and the positions that it writes


# By the functional op. TorchAir has exactly these three; add your own with `register_inplace_form`.
FORMS: dict[str, InplaceForm] = {
    "npu::npu_kv_rmsnorm_rope_cache_v2_functional": InplaceForm("npu::npu_kv_rmsnorm_rope_cache_v2", (5, 6)),
    "npu::npu_mla_prolog_v3_functional": InplaceForm("npu::npu_mla_prolog_v3", (9, 10)),
    "npu::npu_add_rms_norm_v2_functional": InplaceForm("npu::npu_add_rms_norm_v2", (0, 1)),
}


def register_inplace_form(functional: str, inplace: str, mutated: tuple[int, ...]) -> None:
    """Let the reinplace passes know an op of your own: both names as `namespace::name` (their default overloads), and
    the positions of the arguments whose new values are the last results of `functional`."""
    FORMS[functional] = InplaceForm(inplace, tuple(mutated))


def form_of(node: Node) -> InplaceCall | None:
    """The in-place op for this node and the positions it writes, where the table has one and torch knows it."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.name not in FORMS:
        return None
    form = FORMS[node.target._schema.name]
    namespace, _, name = form.inplace.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return (packet.default, form.mutated) if packet is not None else None


def results(node: Node) -> dict[int, list[Node]]:
    """The `getitem` nodes of each result."""
    found: dict[int, list[Node]] = {}
    for user in node.users:
        if user.target is operator.getitem:
            number = user.args[1]
            assert isinstance(number, int)  # of a result of an op
            found.setdefault(number, []).append(user)
    return found


def to_inplace(graph: torch.fx.Graph, node: Node, overload: torch._ops.OpOverload, mutated: tuple[int, ...]) -> None:
    """Call the in-place form instead, and re-point every use of a result."""
    count = len(node.meta["val"])
    kept = count - len(mutated)
    for number, parts in results(node).items():
        for part in parts:
            if number >= kept:
                part.replace_all_uses_with(operand(node, mutated[number - kept]))
                graph.erase_node(part)
            elif kept == 1:
                part.replace_all_uses_with(node)
                graph.erase_node(part)
    node.target = overload
    values = tuple(node.meta["val"])[:kept]
    node.meta["val"] = values[0] if kept == 1 else values

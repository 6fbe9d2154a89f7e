"""Remove nodes whose results nobody uses, and assertions about shapes and dtypes that export leaves behind.

Each bucket has concrete shapes that were checked when it was specialised, so the assertions hold by construction.
"""

import torch

_ASSERTIONS = frozenset(
    {
        "aten::_assert_tensor_metadata",
        "aten::_assert_scalar",
        "aten::_assert_async",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
        "aten::_print",
    }
)


def run(module: torch.fx.GraphModule) -> int:
    graph = module.graph
    before = len(graph.nodes)
    for node in reversed(graph.nodes):
        if (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _ASSERTIONS) or (
            node.op == "call_function" and not node.users and not _has_effect(node)
        ):
            graph.erase_node(node)
    return before - len(graph.nodes)


def _has_effect(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable

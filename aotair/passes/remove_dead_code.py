"""Remove nodes whose results nobody uses, and assertions about shapes and dtypes that export leaves behind.

Each bucket has concrete shapes that were checked when it was specialised, so the assertions hold by construction.
"""

import torch

from ..ops.air import is_marker
from .edits import Edits

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


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    for node in reversed(module.graph.nodes):
        if (_is_assertion(node) or _is_dead(node)) and edits.may(node, "removed"):
            module.graph.erase_node(node)


def _is_assertion(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _ASSERTIONS


def _is_dead(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and not node.users and not _has_effect(node)


def _has_effect(node: torch.fx.Node) -> bool:
    """Whether it writes somewhere, or says on which stream others run (`air`)."""
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and (op._schema.is_mutable or is_marker(op))

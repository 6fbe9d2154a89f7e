"""Custom ops that write into their arguments, as calls of the ops themselves on copies of what they write.

torch.export wraps each in a higher-order op that returns the new values. Whether a copy can be left out is for
`reinplace_input_mutated_ops` to say.
"""

import torch


def decompose(module: torch.fx.GraphModule) -> None:
    """Replace all auto-functionalised nodes of `module`, in place."""
    wrapped = [node for node in module.graph.nodes if is_auto_functionalized(node)]
    if not wrapped:
        return
    from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

    decompose_auto_functionalized(module.graph)
    module.recompile()


def is_auto_functionalized(node: torch.fx.Node) -> bool:
    higher_order = torch.ops.higher_order
    return node.target in (higher_order.auto_functionalized, higher_order.auto_functionalized_v2)

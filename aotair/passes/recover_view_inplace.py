"""A write into a view of an input that export took apart is put together again: view, scatter, view back, copy.

Always on, as in TorchAir: `cache.view(…)` or a slice of it, then an op with an in-place form (`index_put`,
`index_copy`, `npu.scatter_update`, `npu.npu_scatter_nd_update`, …) or a scatter, whose result goes back into the input.
"""

import torch

from ..graph.streams import several_streams
from .edits import Edits
from .reinplace_input_mutated_ops import write_in_place


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if several_streams(module.graph.nodes):
        edits.skipped("the graph has several streams")
        return
    write_in_place(module.graph, edits, only_through_views=True)

"""Which kernel each node of a bucket's graph gets, and in which form it is called: decided here once, before planning.

What plans memory and what emits instructions reads it, so that they cannot disagree.
"""

import enum
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch._ops import OpOverload
from torch.fx.node import Node

from ..errors import UnsupportedError
from ..graph.fake import storage_of, tensors_of
from ..graph.packed import packed_places
from ..graph.user_line import source
from ..ops.host import vendor
from ..target.out_variants import out_variant
from ..target.target import Target
from . import slices
from .lowerings import COPIES, FILLS, UNINITIALISED
from .packed import packed_op, packed_product

_aten = torch.ops.aten


class Way(enum.Enum):
    """How a node comes to its result."""

    EVENT = "an event is recorded or waited for"
    NOTHING = "its memory is left as it is"
    COPY = "an argument is copied to its place"
    FILL = "its place is filled with a value"
    EFFECT = "the op writes into its arguments, and returns nothing else"
    EFFECT_AND_COPY = "the op writes into its arguments; what else it returns is copied to its place"
    OUT = "the op writes its results to their places"
    LISTS = "so it does, and takes lists of the host"
    SLICES = "it is called on slices of its first dimension, and each result is copied to its place"
    FRESH = "the op allocates its results, which are copied to their places"


@dataclass(frozen=True)
class Kernel:
    """The overload to call, and how; for LISTS, also the op that makes the call's workspace. `packed` are the
    arguments, by number, that are read as the node packs them; `is_made_afresh`: its result then is, and is copied to
    its place, though the op could write there."""

    op: OpOverload
    way: Way
    workspace: OpOverload | None = None
    packed: tuple[int, ...] = ()
    is_made_afresh: bool = False

    @property
    def writes_all(self) -> bool:
        """Whether it needs a place for each of its results, wanted or not."""
        return self.way in (Way.OUT, Way.LISTS)


def select(graph: torch.fx.Graph, target: Target) -> Mapping[Node, Kernel]:
    """The kernels of all nodes that run, in order; views do not run. Raises UnsupportedError where there is none."""
    found: dict[Node, Kernel] = {}
    known = {storage_of(node.meta["val"]) for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        op = node.target
        if node.op != "call_function" or op is operator.getitem:
            continue
        assert isinstance(op, OpOverload)  # sizes are numbers, so that nothing else is called
        if "event" in node.meta:
            found[node] = Kernel(op, Way.EVENT)
        else:
            storages = [storage_of(value) for _, value in tensors_of(node.meta["val"])]
            is_view = storages and all(storage in known for storage in storages)
            if not is_view or op._schema.is_mutable:
                found[node] = _kernel(node, op, target)
            known.update(storages)
    return found


def _kernel(node: Node, op: OpOverload, target: Target) -> Kernel:
    if op in UNINITIALISED:
        return Kernel(op, Way.NOTHING)
    if op in COPIES:
        return Kernel(_aten.copy_.default, Way.COPY)
    if op in FILLS:
        return Kernel(_aten.fill_.Scalar, Way.FILL)
    if target.takes_host_arguments and (stand_in := vendor(op)) is not None:
        return Kernel(stand_in.out, Way.LISTS, stand_in.workspace)
    if (packed := packed_op(target, op, node.args)) is not None:
        return Kernel(packed, Way.FRESH, packed=(1,))
    out = out_variant(op, target)
    if out is None and not target.runs(op):
        raise UnsupportedError(
            f"the op {op} has no kernel on {target.kind}{source(node)}",
            fix="write it with other ops: it would run on the host, which a capture cannot record",
        )
    if op._schema.is_mutable:
        returns_more = any(result.alias_info is None for result in op._schema.returns)
        return Kernel(op, Way.EFFECT_AND_COPY if returns_more else Way.EFFECT, packed=packed_places(node))
    if out is not None and (place := packed_product(target, op, node.args)) is not None and not node.kwargs:
        return Kernel(out, Way.OUT, packed=(place,), is_made_afresh=True)
    if out is not None:
        return Kernel(out, Way.OUT, packed=packed_places(node))
    if target.sliced_calls and slices.sliced_arguments(node) and len(slices.slice_bounds(node)) > 1:
        return Kernel(op, Way.SLICES)
    return Kernel(op, Way.FRESH, packed=packed_places(node))

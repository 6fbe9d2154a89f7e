"""What depends on sizes, and on constants that no checkpoint has, is a table of its bucket, made before any call:
positions, rotary embeddings, masks that no input has a part in.

Constants are folded again, where sizes are numbers. By then calls write over what they read; those that write over a
part of a table make a tensor of their own again. Every bucket has tables of its own: they may take a hundredth of what
the weights take, and a little more.
"""

import functools
from collections.abc import Iterable, Sequence

import torch
from torch.fx.node import Node

from ..graph.alias import base, root
from ..graph.derived import derivations, is_constant, is_fixed
from ..graph.fake import fake_mode, fake_result, relay
from ..graph.inplace import plain_overload
from ..graph.operand import operand, results_of
from ..graph.streams import several_streams
from ..target.target import Target
from .edits import Edits
from .fold_constants import constant_nodes, fold, nbytes

_MOST = 256 << 10  # bytes of a table
_SHARE, _ALWAYS = 100, 64 << 10  # all of a bucket take this part of what its constants take, and these bytes, at most


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    if several_streams(graph.nodes):
        edits.skipped("the graph has several streams")
        return
    over = _over_tables(graph, edits.target)
    written = {node: node.target for node in over}
    for node, plain in over.items():
        node.target = plain
    large = functools.partial(_large, _allowance(graph))
    relaid = fold(graph, edits, is_fixed, _returned(graph), large, together=False)
    left = [node for node in written if not node._erased]
    for node in left:
        if root(operand(node, 0)).op != "placeholder":
            node.target = written[node]
    if relaid:
        relay(graph)
    elif written:
        _look_anew(graph, [node for node, _, _ in derivations(graph)], [n for n in left if n.target is over[n]])


def _over_tables(graph: torch.fx.Graph, target: Target) -> dict[Node, torch._ops.OpOverload]:
    """The calls that write over a part of a table, and as well could make a tensor of their own: each with the op that
    does so."""
    plain = {node: op for node in graph.nodes if (op := plain_overload(node.target)) is not None and target.takes(op)}
    roots = {root(node) for node in constant_nodes(graph, begins=is_fixed, plain=plain)}
    writers = [node for node in plain if root(node) in roots]
    if not writers:
        return {}
    for node in (*_read_before(graph, writers), *(n for n in writers if not _gives_the_same(n))):
        plain.pop(node, None)
    inside = constant_nodes(graph, begins=is_fixed, plain=plain)
    return {node: plain[node] for node in writers if node in plain and operand(node, 0) in inside}


def _gives_the_same(node: Node) -> bool:
    """Whether the result of the plain op would be of the dtype of what is written over, and not promoted."""
    return all(item.meta["val"].dtype == node.meta["val"].dtype for item in node.all_input_nodes)


def _allowance(graph: torch.fx.Graph) -> int:
    """What all tables of a bucket may take, in bytes."""
    return sum(nbytes(node) for node in graph.find_nodes(op="placeholder") if is_constant(node)) // _SHARE + _ALWAYS


def _large(allowance: int, wanted: Sequence[Node]) -> dict[Node, str]:
    """Why tables are computed in each call: they are large, or those before them take all that there is."""
    found, taken = dict[Node, str](), 0
    for node in wanted:
        taken += nbytes(node)
        if nbytes(node) > _MOST:
            found[node] = f"it would take {nbytes(node):,} bytes in this bucket"
        elif taken > allowance:
            found[node] = f"all tables of the bucket would take more than {allowance:,} bytes"
    return found


def _read_before(graph: torch.fx.Graph, writers: Iterable[Node]) -> set[Node]:
    """Those of the calls that write into a tensor for somebody who reads it by another node than the call."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    by_root: dict[Node, list[Node]] = {}
    for node in writers:
        by_root.setdefault(root(node), []).append(node)
    found = set[Node]()
    for reader in graph.nodes:
        for item in reader.all_input_nodes:
            writes = by_root.get(root(item), ())
            found.update(node for node in writes if order[item] < order[node] < order[reader])
    return found


def _returned(graph: torch.fx.Graph) -> set[Node]:
    """What lies in memory that callers get: they may write there."""
    roots = {root(node) for node in results_of(graph)}
    return {node for node in graph.nodes if root(node) in roots}


def _look_anew(graph: torch.fx.Graph, tables: Iterable[Node], apart: Iterable[Node]) -> None:
    """Give tables memory of their own, and the calls `apart`, which write over nothing any more; and look anew at what
    shares it. All lies as it did."""
    mode, anew = fake_mode(graph), set(apart)
    with mode:
        for node in tables:
            node.meta["val"] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            anew.add(node)
    for node in graph.nodes:
        if node.op == "call_function" and (node in anew or base(node) in anew):
            node.meta["val"] = fake_result(mode, node.target, node.args, dict(node.kwargs))
            anew.add(node)

"""Batch norms and scales become part of the weights before them: what they do to each channel is done to the weights.

A batch norm over the result of a convolution or a linear layer, or before a linear layer or a convolution without
padding; a product, quotient, sum or difference of such a result, or of an embedding, with a number, or with a constant
that has one value for each channel, also behind a view. The ops on weights that this writes are constants themselves.

Which dtypes: float32 and float64, where a folded weight is rounded once, as the layer's own products are. In float16
and bfloat16 a weight that is rounded again errs by as much as a whole result may, in each of its products, and where
these cancel each other no tolerance holds for every checkpoint. There only what gives the same bits is done: a constant
added to a layer without a bias, and what is computed of an embedding's values one by one, which holds in any dtype. A
norm after a convolution that a CPU packs becomes a factor and a term of float32 for each channel instead, which the
convolution's kernel applies to its sums.

Left alone: results with other readers, returned ones among them; weights with other readers, which would be stored
twice; norms of training; what depends on a call; constants of another dtype; calls on different streams; numbers that
are infinite, and quotients by the number zero.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Argument, Node

from aotair_runtime.devices import channel_affine

from ..graph.fake import fake_mode, fake_result, relay
from ..graph.layers import Layer, Writer, layer_of, reading, rewritten, scaled, shifted, why_not_before, why_shared
from ..graph.operand import index_of, op_of, operand
from .edits import Edits
from .fold_constants import constant_nodes, why_large
from .streams import labels

_aten = torch.ops.aten
_SCALES = frozenset({_aten.mul.Tensor, _aten.div.Tensor})
_SHIFTS = frozenset({_aten.add.Tensor, _aten.sub.Tensor})
_COMMUTE = frozenset({_aten.mul.Tensor, _aten.add.Tensor})
_NORMS = frozenset(
    {
        _aten.batch_norm.default,
        _aten.native_batch_norm.default,
        _aten._native_batch_norm_legit.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_no_training.default,
        _aten._batch_norm_no_update.default,
        _aten.cudnn_batch_norm.default,
        _aten.miopen_batch_norm.default,
    }
)
_REORDERS = frozenset({_aten.transpose.int, _aten.permute.default})
_VIEWS = _REORDERS | {_aten.view.default, _aten._unsafe_view.default, _aten.unsqueeze.default}
_WIDE = (torch.float32, torch.float64)


@dataclass
class _Graph:
    """The graph, and what is known of its nodes."""

    graph: torch.fx.Graph
    edits: Edits
    constants: set[Node]
    streams: dict[Node, int]
    moved: bool = field(default=False)  # whether a result lies otherwise than before

    def why_not_constant(self, nodes: Iterable[Node | None]) -> str:
        """Which of the nodes is none that follows from constants alone, or would not be stored; empty where all are."""
        for node in nodes:
            if node is not None and node not in self.constants:
                return f"{node.name} is no constant"
            if node is not None and node.op != "placeholder" and (why := why_large(node)):
                return f"{node.name} is computed in each call: {why}"
        return ""


@dataclass(frozen=True)
class _Source:
    """What a call reads: a layer's result, through views. Its channels are along dimension `channel`, or along none."""

    layer: Layer
    views: tuple[Node, ...]
    channel: int | None

    @property
    def result(self) -> Node:
        return self.views[-1] if self.views else self.layer.node


@dataclass(frozen=True)
class _Norm:
    """A batch norm, its result that is used, and its constants."""

    node: Node
    result: Node
    gamma: Node | None
    beta: Node | None
    mean: Node
    var: Node
    eps: float

    @property
    def constants(self) -> list[Node]:
        return [one for one in (self.gamma, self.beta, self.mean, self.var) if one is not None]


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    known = _Graph(graph, edits, constant_nodes(graph), labels(graph))
    for node in list(graph.nodes):
        if node in known.constants:
            continue
        if node.target in _NORMS:
            _try_norm(known, node)
        elif node.target in _SCALES | _SHIFTS:
            _try_arithmetic(known, node)
    if known.moved:
        relay(graph)


# ---- batch norms -----------------------------------------------------------------------------------------------------


def _try_norm(known: _Graph, node: Node) -> None:
    """Fold a norm into the layer before it, or else into the one after it."""
    norm = _norm(node)
    if isinstance(norm, str):
        known.edits.declined(node, norm)
        return
    why = "no convolution and no linear layer stands before it, or alone after it"
    if (source := _source(node.args[0])) is not None:
        why = _why_not_norm(known, norm, source.layer) or _why_not_after(known, source, node)
        if not why and source.channel != 1:
            why = "it normalises another dimension than that of the layer's channels"
        if not why:
            _fold_norm(known, norm, source)
            return
        if _may_scale(known, norm, source):
            _scale(known, norm, source)
            return
    if (after := _only_layer_after(norm.result)) is not None:
        before = _why_not_norm(known, norm, after) or _why_not_before(known, norm, after)
        if not before:
            _fold_norm_into_next(known, norm, after)
            return
        why = why if source is not None else before
    known.edits.declined(node, why)


def _norm(node: Node) -> _Norm | str:
    """The norm that a call is, or why it is none of inference."""
    names = [argument.name for argument in op_of(node)._schema.arguments]
    given = dict(zip(names, node.args)) | node.kwargs
    results = {user: index_of(user) if isinstance(node.meta["val"], (tuple, list)) else 0 for user in node.users}
    if given.get("training", False):
        return "it normalises by the statistics of what it reads, as in training"
    if not isinstance(node.meta["val"], (tuple, list)):
        result = node
    elif set(results.values()) == {0} and len(results) == 1:
        (result,) = results
    else:
        return "its statistics are used"
    mean, var, gamma, beta = (given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    eps = given.get("eps", given.get("epsilon"))
    if not isinstance(mean, Node) or not isinstance(var, Node) or not isinstance(eps, float):
        return "it has no statistics of its own"
    assert isinstance(gamma, (Node, type(None))) and isinstance(beta, (Node, type(None)))
    return _Norm(node, result, gamma, beta, mean, var, eps)


def _why_not_norm(known: _Graph, norm: _Norm, layer: Layer) -> str:
    """Why a norm cannot become part of a layer's weights, wherever it stands."""
    weights = [one for one in (layer.weight, layer.bias) if one is not None]
    if why := known.why_not_constant([*norm.constants, *weights]):
        return why
    dtype = layer.node.meta["val"].dtype
    if any(one.meta["val"].dtype != dtype for one in (norm.result, *norm.constants, *weights)):
        return "its constants and the layer's have not the same dtype"
    if dtype not in _WIDE:
        return f"weights of {dtype} would be rounded a second time"
    return why_shared(layer)


def _fold_norm(known: _Graph, norm: _Norm, source: _Source) -> None:
    layer = source.layer
    if known.edits.may(norm.node, f"becomes part of the weights of {layer.node.name}"):
        write = _writer(known, layer.node, norm.node, norm.constants)
        factor, term = _factor_and_term(norm, write)
        made = shifted(scaled(layer, write, _aten.mul.Tensor, factor), write, _aten.add.Tensor, term)
        _replace(known, source, made, norm.result)
        if norm.result is not norm.node:
            known.graph.erase_node(norm.node)


def _may_scale(known: _Graph, norm: _Norm, source: _Source) -> bool:
    """Whether a norm of narrow numbers may be made what the convolution before it does to its sums."""
    layer, dtype = source.layer, norm.result.meta["val"].dtype
    if dtype in _WIDE or layer.node.target is not _aten.convolution.default or source.views:
        return False
    if layer.node.args[6]:  # transposed, which no CPU packs
        return False
    if not known.edits.target.packs_convolution(dtype) or layer.node.meta["val"].dim() != 4:
        return False
    same = all(one.meta["val"].dtype == dtype for one in (layer.node, *norm.constants))
    return same and not (known.why_not_constant(norm.constants) or _why_not_after(known, source, norm.node))


def _scale(known: _Graph, norm: _Norm, source: _Source) -> None:
    node, layer = norm.node, source.layer
    if known.edits.may(node, f"becomes a factor and a term for each channel of {layer.node.name}"):
        write = _writer(known, node, node, norm.constants)
        factor, term = _factor_and_term(_in_float32(norm, write), write)
        call = Writer(node, node, set()).call(channel_affine.OP, layer.node, factor, term)
        known.streams[call] = known.streams.get(node, 0)
        known.moved |= not _lies_as(call, norm.result)
        norm.result.replace_all_uses_with(call)
        for one in dict.fromkeys((norm.result, node)):
            known.graph.erase_node(one)


def _in_float32(norm: _Norm, write: Writer) -> _Norm:
    """The norm with its constants in float32."""
    cast = _aten._to_copy.default
    copied = {one: write.call(cast, one, dtype=torch.float32) for one in dict.fromkeys(norm.constants)}
    gamma, beta = (None if one is None else copied[one] for one in (norm.gamma, norm.beta))
    return replace(norm, gamma=gamma, beta=beta, mean=copied[norm.mean], var=copied[norm.var])


def _factor_and_term(norm: _Norm, write: Writer) -> tuple[Node, Node]:
    """The norm as x * factor + term, for each channel."""
    factor = write.call(_aten.rsqrt.default, write.call(_aten.add.Tensor, norm.var, norm.eps))
    if norm.gamma is not None:
        factor = write.call(_aten.mul.Tensor, norm.gamma, factor)
    centre = write.call(_aten.mul.Tensor, norm.mean, factor)
    if norm.beta is None:
        return factor, write.call(_aten.neg.default, centre)
    return factor, write.call(_aten.sub.Tensor, norm.beta, centre)


def _only_layer_after(result: Node) -> Layer | None:
    """The layer that alone reads a norm's result, or nothing."""
    (user, *others) = result.users or [None]
    layer = layer_of(user) if user is not None and not others else None
    return layer if layer is not None and user is not None and user.args[0] is result else None


def _why_not_before(known: _Graph, norm: _Norm, layer: Layer) -> str:
    """Why what a norm does to what a layer reads cannot be done to the layer's weights; empty where it can."""
    if known.streams.get(norm.node, 0) != known.streams.get(layer.node, 0):
        return "it and the layer after it run on different streams"
    if why := why_not_before(layer):
        return why
    if layer.channel != 1:
        return "it normalises another dimension than that which the linear layer after it sums over"
    return ""


def _fold_norm_into_next(known: _Graph, norm: _Norm, layer: Layer) -> None:
    if known.edits.may(norm.node, f"becomes part of the weights of {layer.node.name}"):
        given = [*norm.constants, layer.weight, *([] if layer.bias is None else [layer.bias])]
        write = _writer(known, norm.node, norm.node, given)  # there nothing that it reads has been written over yet
        made = reading(layer, write, *_factor_and_term(norm, write))
        call = _rewritten(known, made, norm.node, operand(norm.node))
        layer.node.replace_all_uses_with(call)
        for node in dict.fromkeys((layer.node, norm.result, norm.node)):
            known.graph.erase_node(node)


# ---- products, quotients, sums and differences -----------------------------------------------------------------------


def _try_arithmetic(known: _Graph, node: Node) -> None:
    found = _layer_and_constant(known, node)
    if found is None:
        return
    source, value = found
    why = _why_not_arithmetic(known, node, source, value) or _why_not_after(known, source, node)
    if why:
        known.edits.declined(node, why)
    elif known.edits.may(node, f"becomes part of the weights of {source.layer.node.name}"):
        layer = source.layer
        write = _writer(known, layer.node, node, [value] if isinstance(value, Node) else [])
        if isinstance(value, Node):
            scalar = value.meta["val"].numel() == 1
            value = write.call(_aten.view.default, value, [] if scalar else [layer.channels])
        change = scaled if node.target in _SCALES else shifted
        _replace(known, source, change(layer, write, op_of(node), value, **node.kwargs), node)


def _layer_and_constant(known: _Graph, node: Node) -> tuple[_Source, Argument] | None:
    """Of the two arguments, the one that is a layer's result and the other, where that is a number or a constant."""
    if len(node.args) != 2:
        return None
    for one, other in (node.args, reversed(node.args)) if node.target in _COMMUTE else (node.args,):
        constant = other in known.constants if isinstance(other, Node) else isinstance(other, (int, float))
        if constant and isinstance(one, Node) and (source := _source(one)) is not None:
            return source, other
    return None


def _why_not_arithmetic(known: _Graph, node: Node, source: _Source, value: Argument) -> str:
    layer, scales = source.layer, node.target in _SCALES
    given = value if isinstance(value, Node) else None
    if why := known.why_not_constant([layer.weight, layer.bias, given]):
        return why
    if isinstance(value, (int, float)) and not _is_usual(node, value):
        return f"weights would be infinite, or no numbers, by {value}"
    dtype, result = layer.node.meta["val"].dtype, source.result.meta["val"]
    weights = [one for one in (layer.weight, layer.bias, given) if one is not None]
    if any(one.meta["val"].dtype != dtype for one in (node, *weights)):
        return "the constants have not the same dtype"
    if node.kwargs and node.args[0] is not source.result:
        return "it multiplies the layer's result besides"
    if not statically_known_true(sym_eq(node.meta["val"].shape, result.shape)):
        return f"{given.name if given else value} makes its result larger"
    if given is not None and not _for_each_channel(given.meta["val"], result.dim(), source.channel):
        return f"{given.name} does not vary along the layer's channels alone"
    if dtype not in _WIDE and not layer.looks_up and (scales or layer.bias is not None):
        return f"weights of {dtype} would be rounded a second time"
    return why_shared(layer) if scales or layer.looks_up else ""


def _is_usual(node: Node, value: int | float) -> bool:
    return math.isfinite(value) and (value != 0 or node.target is not _aten.div.Tensor)


def _for_each_channel(value: torch.Tensor, dims: int, channel: int | None) -> bool:
    """Whether a constant has one value, or one for each channel."""
    first = dims - value.dim()
    return all(size == 1 or first + place == channel for place, size in enumerate(value.shape))


# ---- both ------------------------------------------------------------------------------------------------------------


def _source(node: Argument) -> _Source | None:
    """The layer whose result a node is, through views."""
    views: list[Node] = []
    while isinstance(node, Node) and node.target in _VIEWS:
        views.insert(0, node)
        node = node.args[0]
    layer = layer_of(node) if isinstance(node, Node) else None
    if layer is None:
        return None
    channel: int | None = layer.channel
    for view in views:
        channel = _reordered(view, channel)
    return _Source(layer, tuple(views), channel)


def _reordered(view: Node, channel: int | None) -> int | None:
    """Where a dimension is in a view; nothing where the view has other dimensions."""
    if channel is None or view.target not in _REORDERS:
        return None
    dims = view.meta["val"].dim()
    order = list(range(dims))
    given = view.args[1:] if view.target is _aten.transpose.int else view.args[1]
    assert isinstance(given, (tuple, list))
    places = [one % dims for one in given if isinstance(one, int)]
    if view.target is _aten.permute.default:
        return places.index(channel)
    order[places[0]], order[places[1]] = places[1], places[0]
    return order[channel]


def _why_not_after(known: _Graph, source: _Source, node: Node) -> str:
    """Why a call cannot go with the layer whose result it reads; empty where it can."""
    for one in (source.layer.node, *source.views):
        if len(one.users) > 1:
            return f"{one.name} has other readers"
        if known.streams.get(one, 0) != known.streams.get(node, 0):
            return f"it and {one.name} run on different streams"
    return ""


def _writer(known: _Graph, place: Node, like: Node, constants: Iterable[Node]) -> Writer:
    """Writes constants before `place`; what it is given and is computed later is computed before it."""
    for node in constants:
        _bring(node, place)
    return Writer(place, like, known.constants)


def _bring(node: Node, place: Node) -> None:
    if node.op != "placeholder" and place < node:
        for argument in node.all_input_nodes:
            _bring(argument, place)
        place.prepend(node)


def _replace(known: _Graph, source: _Source, made: Layer, result: Node) -> None:
    """Let those that read `result` read the layer with its new weights, through the views that `result` was behind."""
    old = source.layer.node
    call = _rewritten(known, made, old)
    old.replace_all_uses_with(call)
    last = source.result if source.views else call
    if not known.moved:
        for view in source.views:
            view.meta["val"] = fake_result(fake_mode(known.graph), view.target, view.args, dict(view.kwargs))
        known.moved = not _lies_as(last, result)
    result.replace_all_uses_with(last)
    known.graph.erase_node(result)
    known.graph.erase_node(old)


def _rewritten(known: _Graph, layer: Layer, place: Node, source: Node | None = None) -> Node:
    """The layer's call anew, before `place`."""
    call = rewritten(layer, Writer(place, layer.node, set()), source)
    known.streams[call] = known.streams.get(layer.node, 0)
    known.moved |= not _lies_as(call, layer.node)
    return call


def _lies_as(node: Node, before: Node) -> bool:
    return statically_known_true(sym_eq(node.meta["val"].stride(), before.meta["val"].stride()))

"""Convolutions, linear layers and embeddings: what their weights are, and the same layers with other weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.node import Argument, Node

from .alias import base
from .fake import fake_mode, fake_result
from .operand import op_of

_aten = torch.ops.aten
_CONVOLUTION, _LINEAR, _EMBEDDING = _aten.convolution.default, _aten.linear.default, _aten.embedding.default


@dataclass(frozen=True)
class Layer:
    """A call and its weights. It has so many `channels`, along dimension `channel` of its result."""

    node: Node
    weight: Node
    bias: Node | None
    channels: int
    channel: int

    @property
    def looks_up(self) -> bool:
        """Whether its result is made of rows of its weight, as they are."""
        return self.node.target is _EMBEDDING


@dataclass(frozen=True)
class Writer:
    """Writes calls before `place`, on behalf of the user's line that `like` came from; `made` receives them."""

    place: Node
    like: Node
    made: set[Node]

    def call(self, target: Callable[..., Any], *args: Argument, **kwargs: Argument) -> Node:
        """The call of an op, or of a function of sizes, and what it returns."""
        graph = self.place.graph
        with graph.inserting_before(self.place):
            node = graph.call_function(target, args, kwargs)
        node.meta = {key: value for key, value in self.like.meta.items() if key != "val"}
        node.meta["val"] = fake_result(fake_mode(graph), target, args, kwargs)
        self.made.add(node)
        return node


def layer_of(node: Node) -> Layer | None:
    """The layer that a node is, or nothing."""
    args, known = node.args, (_CONVOLUTION, _LINEAR, _EMBEDDING)
    if node.op != "call_function" or node.target not in known or "bias" in node.kwargs or len(args) < 2:
        return None
    weight, bias = (args[0], None) if node.target is _EMBEDDING else (args[1], args[2] if len(args) > 2 else None)
    if not isinstance(weight, Node) or not isinstance(bias, (Node, type(None))) or weight.meta["val"].dim() < 2:
        return None
    shape = weight.meta["val"].shape
    if node.target is _CONVOLUTION:
        channels = shape[1] * args[8] if args[6] else shape[0]
    else:
        channels = shape[1] if node.target is _EMBEDDING else shape[0]
    channel = 1 if node.target is _CONVOLUTION else node.meta["val"].dim() - 1
    return Layer(node, weight, bias, channels, channel) if isinstance(channels, int) else None


def why_shared(layer: Layer) -> str:
    """Why other weights would be stored beside those that are there; empty where these would go."""
    node = layer.weight
    while len(node.users) == 1 and (source := base(node)) is not None:
        node = source
    return f"{node.name} has other readers, and would be stored a second time" if len(node.users) > 1 else ""


def scaled(layer: Layer, write: Writer, op: OpOverload, factor: Argument) -> Layer:
    """The layer whose results are `op(result, factor)`: a product or a quotient with a number, or with a tensor of no
    dimension or of one value for each channel."""
    weight = write.call(op, layer.weight, _along_outputs(layer, write, factor))
    return replace(layer, weight=weight, bias=layer.bias and write.call(op, layer.bias, factor))


def shifted(layer: Layer, write: Writer, op: OpOverload, term: Argument, **alpha: Argument) -> Layer:
    """The layer whose results are `op(result, term)`: a sum or a difference with such a number or tensor."""
    if layer.looks_up:
        return replace(layer, weight=write.call(op, layer.weight, term, **alpha))
    plain = op is _aten.add.Tensor and not alpha and isinstance(term, Node) and term.meta["val"].dim() == 1
    if layer.bias is None and plain:
        assert isinstance(term, Node)
        return replace(layer, bias=term)
    bias = layer.bias or write.call(_aten.new_zeros.default, layer.weight, [layer.channels])
    return replace(layer, bias=write.call(op, bias, term, **alpha))


def why_not_before(layer: Layer) -> str:
    """Why nothing that is done to each channel of what a layer reads can be done to its weights; empty where it can."""
    if layer.looks_up:
        return "an embedding reads no channels"
    if layer.node.target is not _CONVOLUTION:
        return ""
    _, _, _, _, padding, _, transposed, _, groups = layer.node.args
    if transposed or groups != 1:
        return "the convolution after it is transposed or has groups"
    assert isinstance(padding, (tuple, list))
    return "the convolution after it puts zeros around what it reads" if any(size != 0 for size in padding) else ""


def reading(layer: Layer, write: Writer, factor: Node, term: Node) -> Layer:
    """The layer that gives for x what it gave for x * factor + term, which have one value for each channel of x."""
    shape = [1, -1, *[1] * (layer.weight.meta["val"].dim() - 2)]
    factor, term = (write.call(_aten.view.default, one, shape) for one in (factor, term))
    weight = write.call(_aten.mul.Tensor, layer.weight, factor)
    parts = write.call(_aten.mul.Tensor, layer.weight, term)
    whole = write.call(_aten.sum.dim_IntList, parts, list(range(1, len(shape))))
    return replace(shifted(layer, write, _aten.add.Tensor, whole), weight=weight)


def rewritten(layer: Layer, write: Writer, source: Node | None = None) -> Node:
    """The call of the layer with its weights as they are now; it reads `source` where one is given."""
    old = layer.node
    if layer.looks_up:
        return write.call(op_of(old), layer.weight, *old.args[1:], **old.kwargs)
    return write.call(op_of(old), source or old.args[0], layer.weight, layer.bias, *old.args[3:], **old.kwargs)


def _along_outputs(layer: Layer, write: Writer, factor: Argument) -> Argument:
    """The factor as it multiplies the layer's weight."""
    if layer.looks_up or not isinstance(factor, Node) or factor.meta["val"].dim() == 0:
        return factor
    shape, view = layer.weight.meta["val"].shape, _aten.view.default
    kernel = [1] * (len(shape) - 2)
    if layer.node.target is not _CONVOLUTION or not layer.node.args[6]:
        return write.call(view, factor, [-1, 1, *kernel])
    groups = layer.node.args[8]
    assert isinstance(groups, int)
    if groups == 1:
        return write.call(view, factor, [1, -1, *kernel])
    split = write.call(view, factor, [groups, 1, shape[1]])
    each = write.call(_aten.repeat.default, split, [1, shape[0] // groups, 1])
    return write.call(view, each, [shape[0], shape[1], *kernel])

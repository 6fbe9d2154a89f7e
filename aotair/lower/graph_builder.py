"""A graph under construction: calls are appended, and what they return is worked out on fake tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import Argument, Node

from ..graph.fake import fake_result
from ..graph.origin import SPECIALISE, copied, made_by
from ..target.target import HOST, Target


class GraphBuilder:
    """Appends calls to a new graph for `target` and works out, on fake tensors, what they return."""

    def __init__(self, target: Target = HOST) -> None:
        self.target = target
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode()
        # A kernel that looks for values where there are none then fails, and does not end the process.
        self.mode._allow_unsafe_data_ptr_access = False
        self.origin: Mapping[str, object] = {}  # where the next calls come from, as `graph.origin` has it
        self.stream = 0  # that the next calls run on
        self.composed: dict[torch._ops.OpOverload, bool] = {}  # whether nodes run what an op without a kernel calls

    def placeholder(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Node:
        node = self.graph.create_node("placeholder", name, name=name)
        with self.mode:
            node.meta["val"] = torch.empty_strided(shape, strides, dtype=dtype)
        return node

    def call(self, target: Callable[..., Any], /, *args: Argument, **kwargs: Argument) -> Node:
        """A call of an op overload or of getitem; its arguments are nodes and plain values."""
        return self.append(target, args, kwargs)

    def append(
        self, target: Callable[..., Any], args: tuple[Argument, ...], kwargs: Mapping[str, Argument], name: str = ""
    ) -> Node:
        """A call whose arguments may have any name; `name` is the node's that it copies, empty where none is."""
        node = self.graph.create_node("call_function", target, args, dict(kwargs), name=name or None)
        node.meta["val"] = self.evaluate(target, args, kwargs)
        node.meta |= self.origin if name else made_by(self.origin, SPECIALISE)
        node.meta["stream"] = self.stream
        return node

    def event(self, like: Node) -> Node:
        """An event is recorded or waited for, as in the graph that is copied."""
        node = self.graph.create_node("call_function", like.target, like.args, name=like.name)
        node.meta |= {key: like.meta.get(key) for key in ("val", "event", "stream")} | copied(like)
        return node

    def evaluate(self, target: Callable[..., Any], args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> Any:
        """What a call returns: fake tensors for tensors, and numbers for sizes."""
        return fake_result(self.mode, target, args, dict(kwargs))

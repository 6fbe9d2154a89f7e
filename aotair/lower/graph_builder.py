"""A graph under construction: calls are appended, and what they return is worked out on fake tensors."""

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import Node

from ..graph.fake import fake_result


class GraphBuilder:
    """Appends calls to a new graph and works out, on fake tensors, what they return."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode()
        # A kernel that looks for values where there are none then fails, and does not end the process.
        self.mode._allow_unsafe_data_ptr_access = False
        self.stack_trace: str | None = None  # the user's lines that the next calls come from
        self.stream = 0  # that the next calls run on
        self.composed: dict[torch._ops.OpOverload, bool] = {}  # whether nodes run what an op without a kernel calls

    def placeholder(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Node:
        node = self.graph.create_node("placeholder", name, name=name)
        with self.mode:
            node.meta["val"] = torch.empty_strided(shape, strides, dtype=dtype)
        return node

    def call(self, target: Callable, *args, name: str | None = None, **kwargs) -> Node:
        """A call of an op overload or of getitem; its arguments are nodes and plain values."""
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta["val"] = self.evaluate(target, args, kwargs)
        node.meta["stack_trace"] = self.stack_trace
        node.meta["stream"] = self.stream
        return node

    def event(self, like: Node) -> Node:
        """An event is recorded or waited for, as in the graph that is copied."""
        node = self.graph.create_node("call_function", like.target, like.args, name=like.name)
        node.meta |= {key: like.meta.get(key) for key in ("val", "event", "stream", "stack_trace")}
        return node

    def evaluate(self, target: Callable, args: tuple, kwargs: Mapping) -> object:
        return fake_result(self.mode, target, args, dict(kwargs))

"""What each node returns, as fake tensors: worked out anew after a graph was changed."""

import contextlib
import io
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Argument, Node, map_arg

from .operand import operand


class CannotEvaluate(Exception):
    """A call of the graph cannot be made; `node` is the one."""

    def __init__(self, node: Node, error: Exception):
        super().__init__(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        self.node = node


def fake_mode(graph: torch.fx.Graph) -> FakeTensorMode:
    """The mode that the graph's fake tensors belong to."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next(value.fake_mode for value in values if isinstance(value, FakeTensor))


def fake_result(mode: FakeTensorMode, target: Any, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> object:
    """What a call of `target` returns, with the nodes among its arguments standing for their values."""
    values: Any = map_arg((args, kwargs), lambda node: node.meta["val"])
    fake_args, fake_kwargs = values
    if target is operator.getitem:
        return fake_args[0][fake_args[1]]
    # Kernels of torch that take no symbolic sizes have a form in Python that does.
    with mode, torch.no_grad(), enable_python_dispatcher():
        return target(*fake_args, **fake_kwargs)


def tensors_of(value: object) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors that a call returns, with their positions."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return ((i, item) for i, item in enumerate(values) if isinstance(item, torch.Tensor))


def storage_of(value: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return int(value.untyped_storage()._cdata)


def relay(graph: torch.fx.Graph, before: Callable[[Node], None] = lambda node: None) -> None:
    """`recompute` where results now have other strides: a view that these do not allow looks at a copy. `before` may
    change a call that is next. Raises CannotEvaluate."""
    mode = fake_mode(graph)
    with quiet_torch():
        for node in list(graph.nodes):
            if node.op == "call_function" and "event" not in node.meta:
                before(node)
                _relay(mode, node)


def _relay(mode: FakeTensorMode, node: Node) -> None:
    if node.target is torch.ops.aten.view.default and not _may_be_seen(node):
        copy_first(node)
    try:
        node.meta["val"] = fake_result(mode, node.target, node.args, dict(node.kwargs))
    except Exception as error:
        if not _is_view(node):
            raise CannotEvaluate(node, error) from error
        copy_first(node)
        node.meta["val"] = fake_result(mode, node.target, node.args, dict(node.kwargs))


def _is_view(node: Node) -> bool:
    """Whether a call looks at its first argument, in another way."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], Node):
        return False
    schema = node.target._schema
    return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)


def _may_be_seen(view: Node) -> bool:
    """Whether the strides of a tensor allow that it is seen in the sizes of a view, surely: fake tensors let more pass
    than real ones. As ATen's `computeStride` says it: the sizes of the view divide those of each run of dimensions
    that lie one in the other."""
    source, given = operand(view).meta["val"], view.meta["val"].shape
    if source.is_contiguous():
        return True
    shape, strides = source.shape, source.stride()
    numel: Any = 1
    wanted: Any = 1
    place, base = len(given) - 1, strides[-1]
    for dim in reversed(range(len(shape))):
        numel = numel * shape[dim]
        if dim and statically_known_true(shape[dim - 1] == 1):
            continue
        if dim and statically_known_true(strides[dim - 1] == numel * base):
            continue
        while place >= 0 and (not statically_known_true(wanted == numel) or statically_known_true(given[place] == 1)):
            wanted, place = wanted * given[place], place - 1
        if not statically_known_true(wanted == numel):
            return False
        numel, wanted, base = 1, 1, strides[dim - 1] if dim else 1
    return place < 0


def copy_first(view: Node, place: int = 0) -> None:
    """Let a view look at a copy of what it looks at, in order; or another call take one of its argument at a place."""
    source = view.args[place]
    with view.graph.inserting_before(view):
        copied = view.graph.call_function(
            torch.ops.aten.clone.default, (source,), {"memory_format": torch.contiguous_format}
        )
    copied.meta["val"] = fake_result(fake_mode(view.graph), copied.target, copied.args, dict(copied.kwargs))
    view.update_arg(place, copied)


def recompute(graph: torch.fx.Graph) -> None:
    """Every call's result anew, in order, so that what shares memory shares it here too. Raises CannotEvaluate."""
    mode = fake_mode(graph)
    for node in graph.nodes:
        if node.op == "call_function" and "event" not in node.meta:
            try:
                node.meta["val"] = fake_result(mode, node.target, node.args, dict(node.kwargs))
            except Exception as error:
                raise CannotEvaluate(node, error) from error


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """What torch has to say of a trace is said by the error that we raise; its warnings and dumps are not for users.

    On a data-dependent branch it prints the half-made graph to standard error: that text is dropped, any other that
    the model itself prints goes through.
    """
    printed = io.StringIO()
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        text = printed.getvalue()
        if "def forward(self, arg0_1" not in text:
            sys.stderr.write(text)

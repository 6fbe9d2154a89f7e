"""The ops of attention with their lengths as tensors, `air::fused_infer_attention_score` and its second version.

On the host they read the tensors and call the op with lists; `..host` has the table.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..host import LISTS, PREFIX, SUFFIX
from ..registry import HostOp
from . import fused_infer_attention


def _without_tensors(
    name: str, kwargs: dict[str, object], value: Callable[[Any], list[int] | None]
) -> dict[str, object]:
    given = {argument: kwargs.pop(argument + SUFFIX, None) for argument in LISTS[name]}
    return kwargs | {argument: value(tensor) for argument, tensor in given.items() if tensor is not None}


def _host_op(name: str) -> HostOp:
    call = getattr(torch.ops.npu, name).default
    schema = next(op.schema for op in fused_infer_attention.OPS if op.name == name)
    arguments, _, returns = schema.removeprefix(PREFIX).rpartition(") -> ")
    tensors = "".join(f", Tensor? {argument}{SUFFIX}=None" for argument in LISTS[name])

    def kernel(*args: object, **kwargs: object) -> object:
        return call(*args, **_without_tensors(name, kwargs, torch.Tensor.tolist))

    def shape(*args: object, **kwargs: object) -> object:
        return call(*args, **_without_tensors(name, kwargs, lambda _: None))

    return HostOp(f"{arguments}{tensors}) -> {returns}", kernel, shape)


def ops() -> tuple[HostOp, ...]:
    """Those of the namespace air, once the ops of npu are defined."""
    return tuple(_host_op(name) for name in LISTS)

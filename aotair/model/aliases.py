"""Which of a model's tensors share memory, or are none of the plain kind, and what is refused of that.

In an artifact each has memory of its own. That does no harm where nobody writes.
"""

from collections.abc import Mapping

import torch

from ..errors import UnsupportedError
from ..recipe.entry import EntryJob
from .reference import Original
from .samples import random_inputs


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether some byte may belong to both."""
    (a_start, a_stop), (b_start, b_stop) = _span(a), _span(b)
    return a_start < b_stop and b_start < a_stop


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return 0, 0
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def refuse_layouts(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Raises UnsupportedError where a tensor of the model is no plain memory: sparse, quantised, nested or without
    values."""
    for name, tensor in tensors.items():
        kind = "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else ""
        kind = kind or ("without values (on the meta device)" if tensor.is_meta else "")
        kind = kind or ("" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch."))
        if kind:
            raise UnsupportedError(
                f"the model's tensor {name} is {kind}",
                where=where,
                expected="tensors with a value for each element",
                fix=f"keep {name} dense (to_dense(), dequantize()), or compute with its parts as tensors of their own",
            )


def shared_memory(written: str, other: str, where: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"the model writes into {written}, whose memory {other} shares",
        where=where,
        expected="tensors that are written to have memory of their own",
        fix=f"keep one of them, and compute the other in forward (self.{written}, or a view of it); or make {other} a "
        "clone, if it is not meant to change",
    )


def refuse_shared_writes(model: torch.nn.Module, job: EntryJob, others: Mapping[str, torch.Tensor]) -> None:
    """Raises UnsupportedError where a call of the entry point writes memory that two tensors of the model share;
    `others` are tensors that it holds beside those that are registered."""
    named = dict(model.named_buffers(remove_duplicate=False)) | dict(model.named_parameters(remove_duplicate=False))
    named |= others
    for name in _written(model, job, named):
        for other, tensor in named.items():
            if other != name and overlap(named[name], tensor):
                raise shared_memory(name, other, job.where)


def _written(model: torch.nn.Module, job: EntryJob, named: Mapping[str, torch.Tensor]) -> list[str]:
    original = Original(model, job)
    inputs = random_inputs(job, dict(zip(job.dims(), job.bucket_sizes()[0])), 0)
    before = {name: tensor._version for name, tensor in named.items()}
    original.call(inputs)
    after = {name: tensor._version for name, tensor in named.items()}
    original.reset()
    return [name for name in named if before[name] != after[name]]

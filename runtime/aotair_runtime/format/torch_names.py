"""What torch calls the dtypes, layouts and memory formats that an artifact names."""

from typing import TypeVar

import torch

from ..errors import MalformedError

_Kind = TypeVar("_Kind", torch.dtype, torch.memory_format, torch.layout)


def dtype(name: str, where: str = "program") -> torch.dtype:
    """torch's dtype of that name."""
    return _torch_name(name, torch.dtype, "dtype", where)


def memory_format(name: str, where: str = "program") -> torch.memory_format:
    return _torch_name(name, torch.memory_format, "memory format", where)


def layout(name: str, where: str = "program") -> torch.layout:
    return _torch_name(name, torch.layout, "layout", where)


def _torch_name(name: str, kind: type[_Kind], what: str, where: str) -> _Kind:
    value = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(value, kind):
        raise MalformedError(f"{name!r} is no {what} of torch", where=where)
    return value

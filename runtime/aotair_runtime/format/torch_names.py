"""What torch calls the dtypes, layouts and memory formats that an artifact names."""

import torch

from ..errors import MalformedError


def dtype(name: str, where: str = "program") -> torch.dtype:
    """torch's dtype of that name."""
    return _torch_name(name, torch.dtype, "dtype", where)


def memory_format(name: str, where: str = "program") -> torch.memory_format:
    return _torch_name(name, torch.memory_format, "memory format", where)


def layout(name: str, where: str = "program") -> torch.layout:
    return _torch_name(name, torch.layout, "layout", where)


def _torch_name(name: str, kind: type, what: str, where: str):
    value = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(value, kind):
        raise MalformedError(f"{name!r} is no {what} of torch", where=where)
    return value

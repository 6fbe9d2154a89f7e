"""Tensors in files that people have at hand: .safetensors and .npz."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from aotair_runtime.errors import AotairError

from ..disk.place import new_file

# What readers of such files say of one that is broken; a zip file may be so in all of these ways.
_BROKEN = (
    safetensors.SafetensorError,
    ValueError,
    TypeError,
    OSError,
    EOFError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_tensor_file(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a .safetensors or .npz file by name; raises AotairError. Nothing pickled is read."""
    if not path.is_file():
        what = "this is no regular file" if path.exists() else "there is no such file"
        raise AotairError(what, where=str(path))
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if path.suffix == ".npz":
            import numpy

            with numpy.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except _BROKEN as error:
        raise AotairError(f"not readable: {error}", where=str(path)) from error
    raise _unknown(path)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a .safetensors or .npz file; raises AotairError for any other name."""
    if path.suffix == ".safetensors":
        with new_file(path) as aside:
            safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside)
    elif path.suffix == ".npz":
        import numpy

        try:
            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        except TypeError as error:
            raise AotairError(f"NumPy does not know it: {error}", where=str(path), fix="write .safetensors") from error
        with new_file(path) as aside, aside.open("wb") as stream:
            numpy.savez(stream, **arrays)
    else:
        raise _unknown(path)


def describe_tensor(tensor: torch.Tensor) -> str:
    """`float32[2, 384], from -0.12 to 0.2, begins 0.03 -0.01 0.05`."""
    head = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not tensor.numel():
        return head
    plain = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    first = " ".join(f"{value:.4g}" for value in plain.flatten()[:4].tolist())
    if tensor.is_complex():
        return f"{head}, begins {first}"
    low, high = plain.min().item(), plain.max().item()
    return f"{head}, from {low:.4g} to {high:.4g}, begins {first}"


def _unknown(path: Path) -> AotairError:
    return AotairError(
        "unknown kind of file", where=str(path), expected=".safetensors or .npz", got=path.suffix or "none"
    )

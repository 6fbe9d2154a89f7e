"""`torch.ops.air.channel_affine`: each channel of a tensor times a factor, and a term added, in float32.

What a batch norm of narrow numbers does in inference, with nothing rounded but the result. oneDNN's convolutions do it
to what they have summed (see `onednn_primitive`).
"""

import torch
from torch import Tensor

from .results import check_out

_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_library = torch.library.Library("air", "FRAGMENT")


def channel_affine(x: Tensor, factor: Tensor, term: Tensor) -> Tensor:
    """`x * factor + term`, in the dtype and the layout of x.

    x: (batch, channels, …) of bfloat16, float16 or float32; factor and term: (channels,) of float32. Raises ValueError
    for other ones.
    """
    _check(x, factor, term)
    if not x.numel():
        return torch.empty_like(x)
    # As a norm whose mean is 0 and whose variance is 1: torch has a kernel for that which rounds nothing in between.
    mean, variance = torch.zeros_like(factor), torch.ones_like(factor)
    return torch.batch_norm(x, factor, term, mean, variance, False, 0.0, 0.0, False)


def _over(x: Tensor, factor: Tensor, term: Tensor) -> Tensor:
    return x.copy_(channel_affine(x, factor, term))


def _into(x: Tensor, factor: Tensor, term: Tensor, *, out: Tensor) -> Tensor:
    _check_out(x, factor, term, out=out)
    return out.copy_(channel_affine(x, factor, term))


def _check(x: Tensor, factor: Tensor, term: Tensor) -> None:
    fits = x.dim() > 1 and x.dtype in _KINDS and factor.dtype == term.dtype == torch.float32
    if not fits or factor.shape != x.shape[1:2] or term.shape != x.shape[1:2]:
        said = ", ".join(f"{one.dtype} {list(one.shape)}" for one in (x, factor, term))
        raise ValueError(
            f"channel_affine takes floats x (batch, channels, …), and factor and term (channels,) of float32: {said}"
        )


def _empty(x: Tensor, factor: Tensor, term: Tensor) -> Tensor:
    _check(x, factor, term)
    return torch.empty_like(x)


def _check_over(x: Tensor, factor: Tensor, term: Tensor) -> Tensor:
    _check(x, factor, term)
    return x


def _check_out(x: Tensor, factor: Tensor, term: Tensor, *, out: Tensor) -> Tensor:
    _check(x, factor, term)
    return check_out("channel_affine", out, x.shape, x.dtype)


_library.define("channel_affine(Tensor x, Tensor factor, Tensor term) -> Tensor")
_library.define("channel_affine_(Tensor(a!) x, Tensor factor, Tensor term) -> Tensor(a!)")
_library.define("channel_affine.out(Tensor x, Tensor factor, Tensor term, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("channel_affine", channel_affine, _empty),
    ("channel_affine_", _over, _check_over),
    ("channel_affine.out", _into, _check_out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP, OVER = torch.ops.air.channel_affine.default, torch.ops.air.channel_affine_.default

"""Layer norms by a library of oneDNN, which write where they are planned: torch's kernel makes its result afresh."""

import math
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from typing import TypeGuard

import torch

from . import onednn_library as onednn
from .onednn_call import PreparedCall, fast, made_or_none
from .onednn_library import Argument, Kept, Library, library

_FAST = "jit:"


class LayerNorm(PreparedCall):
    """Rows x (rows, width) of float32 to `out`, each normalised, times `weight` and plus `bias` (width,), if any."""

    def __init__(
        self,
        made: Library,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        out: torch.Tensor,
    ):
        self._tensors, self._eps = (x, out, weight, bias), eps
        super().__init__(made)

    def described(self, kept: Kept) -> tuple[c_void_p, list[Argument]]:
        x, out, weight, bias = self._tensors
        rows, row = kept.desc(x.shape, onednn.F32, (x.shape[1], 1)), kept.desc(x.shape[1:], onednn.F32, (1,))
        desc = fast(kept, kept.layer_norm(rows, self._eps, weight is not None, bias is not None), _FAST)
        given = ((onednn.SRC, rows, x), (onednn.DST, rows, out), (onednn.SCALE, row, weight), (onednn.SHIFT, row, bias))
        return desc, [kept.argument(kind, how, tensor) for kind, how, tensor in given if tensor is not None]


def layer_norm(args: Sequence[object], kwargs: Mapping[str, object]) -> LayerNorm | None:
    """`aten::layer_norm` written to `out`; None where there is no library, or the arguments are not float32 without
    gaps."""
    made = library()
    if made is None or not 2 <= len(args) <= 6 or kwargs.keys() != {"out"}:
        return None
    given: list[object] = [*args, *(None, None, 1e-5, True)[len(args) - 2 :]]
    x, shape, weight, bias, eps, _ = given
    out = kwargs["out"]
    if not isinstance(shape, (list, tuple)) or not isinstance(eps, float) or not _is_dense(x) or not _is_dense(out):
        return None
    width, parts = math.prod(shape), [one for one in (weight, bias) if one is not None]
    fits = out.shape == x.shape and x.numel() > 0 and tuple(x.shape[x.dim() - len(shape) :]) == tuple(shape)
    if not fits or not all(_is_dense(one) and one.shape == torch.Size(shape) for one in parts):
        return None
    own = [one.view(width) if isinstance(one, torch.Tensor) else None for one in (weight, bias)]
    return made_or_none(lambda: LayerNorm(made, x.view(-1, width), own[0], own[1], eps, out.view(-1, width)))


def _is_dense(given: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(given, torch.Tensor) or given.dtype != torch.float32 or given.device.type != "cpu":
        return False
    return given.dim() > 0 and given.is_contiguous()

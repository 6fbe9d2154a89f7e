"""RMS norms, alone and with what they are fused with.

Source: the documentation of torch_npu's `npu_rms_norm` and `npu_add_rms_norm*` (aclnnRmsNorm, aclnnAddRmsNorm,
aclnnAddRmsNormCast, aclnnAddRmsNormQuant, aclnnAddRmsNormDynamicQuant).

Where they round, CANN's kernels differ, and so do devices. `rms_norm` rounds once, after gamma, as RmsNorm does. The
norms with an addition round `x * rstd` to the dtype before gamma, as AddRmsNorm does on A2 and A3 (and transformers'
models do), all alike, so that a fused op is the ops apart. On the devices AddRmsNormDynamicQuant, AddRmsNormCast and
AddRmsNormQuant for bfloat16, and every one of them on Ascend 950, round once: there the last bit of y may differ.
"""

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only
from .quant import INT8, dynamic_quant, quantize_affine

_EPS = "float epsilon=1e-06"
_QUANT, _DYNAMIC_QUANT = "npu_add_rms_norm_quant", "npu_add_rms_norm_dynamic_quant"


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`y = x / sqrt(mean(x^2) + epsilon) * gamma` over the trailing dimensions that gamma has.

    input: (..., *gamma.shape), float16, bfloat16 or float32. Returns y, like input, and the reciprocal root as float32
    with those dimensions of size 1.
    """
    normed, rstd = _normed(input, gamma, epsilon)
    return (normed * gamma.float()).to(input.dtype), rstd


def _normed(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """`x * rstd` and rstd, both float32."""
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + epsilon)
    return wide * rstd, rstd


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """`x = x1 + x2`, then `x / sqrt(mean(x^2) + epsilon) * gamma`: (y, rstd, x); x1 and x2 are alike.

    x is rounded to their dtype, and so is what meets gamma.
    """
    x = x1 + x2
    normed, rstd = _normed(x, gamma, epsilon)
    return (normed.to(x.dtype).float() * gamma.float()).to(x.dtype), rstd, x


def add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`add_rms_norm` with y as float32 too: (y as float32, y, rstd, x)."""
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, x


def add_rms_norm_v2_functional(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """(rstd, new x1, new x2): the new x1 is y of `add_rms_norm`, the new x2 is x1 + x2."""
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, x


def add_rms_norm_v2(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    """`add_rms_norm_v2_functional` that writes the new x1 and x2 in place, and returns rstd."""
    rstd, y, x = add_rms_norm_v2_functional(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(x)
    return rstd


def _like_gamma(op: str, gamma: Tensor, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != gamma.shape:
            raise Unserved(f"{op} takes {name} of the shape of gamma", got=str(tuple(tensor.shape)))


def add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Tensor | None,
    beta: Tensor | None = None,
    scales2: Tensor | None = None,
    zero_points2: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm` (plus beta), then y as int8 under each pair of scale and zero point: (y1, y2, x).

    The scales are like gamma. Without scales2, nobody may use y2.
    """
    only(_QUANT, "axis", axis, (-1,))
    only(_QUANT, "dst_type", dst_type, INT8)
    _like_gamma(
        _QUANT,
        gamma,
        scales1=scales1,
        zero_points1=zero_points1,
        beta=beta,
        scales2=scales2,
        zero_points2=zero_points2,
    )
    if scales2 is None and zero_points2 is not None:
        raise Unserved(f"{_QUANT} takes zero_points2 with scales2 alone")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    if beta is not None:
        y = (y.float() + beta.float()).to(y.dtype)
    first = quantize_affine(y, scales1, zero_points1, torch.int8, div_mode)
    second = first if scales2 is None else quantize_affine(y, scales2, zero_points2, torch.int8, div_mode)
    return first, second.clone() if second is first else second, x


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`add_rms_norm` (plus beta), then each row of y as int8 with a scale of its own: (y1, y2, x, scale1, scale2).

    A smooth scale, like gamma, multiplies y before. Which of the two paths are made output_mask says; without it the
    first, and the second where both smooth scales are given. A path that is not made is empty, and takes no scale.
    """
    only(_DYNAMIC_QUANT, "y_dtype", y_dtype, INT8)
    _like_gamma(_DYNAMIC_QUANT, gamma, smooth_scale1=smooth_scale1, smooth_scale2=smooth_scale2, beta=beta)
    made = output_mask or (True, smooth_scale1 is not None and smooth_scale2 is not None)
    if not any(made):
        raise ValueError("output_mask asks for none of the two paths")
    for number, scale in enumerate((smooth_scale1, smooth_scale2)):
        if scale is not None and not made[number]:
            raise Unserved(f"{_DYNAMIC_QUANT} takes smooth_scale{number + 1} for a path that is made (output_mask)")
    y, _, x = add_rms_norm(x1, x2, gamma, epsilon)
    if beta is not None:
        y = (y.float() + beta.float()).to(y.dtype)
    nothing = x.new_empty(0, dtype=torch.int8), x.new_empty(0, dtype=torch.float32)
    y1, scale1 = dynamic_quant(y, smooth_scales=smooth_scale1) if made[0] else nothing
    y2, scale2 = dynamic_quant(y, smooth_scales=smooth_scale2) if made[1] else nothing
    return y1, y2, x, scale1, scale2


OPS = (
    HostOp(f"npu_rms_norm(Tensor input, Tensor gamma, {_EPS}) -> (Tensor, Tensor)", rms_norm),
    HostOp(f"npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, {_EPS}) -> (Tensor, Tensor, Tensor)", add_rms_norm),
    HostOp(
        f"npu_add_rms_norm_cast(Tensor x1, Tensor x2, Tensor gamma, {_EPS}) -> (Tensor, Tensor, Tensor, Tensor)",
        add_rms_norm_cast,
    ),
    HostOp(
        f"npu_add_rms_norm_v2_functional(Tensor x1, Tensor x2, Tensor gamma, {_EPS}) -> (Tensor, Tensor, Tensor)",
        add_rms_norm_v2_functional,
    ),
    HostOp(
        f"npu_add_rms_norm_v2(Tensor(a!) x1, Tensor(b!) x2, Tensor gamma, {_EPS}) -> Tensor",
        add_rms_norm_v2,
    ),
    HostOp(
        "npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, Tensor? zero_points1, "
        "Tensor? beta=None, Tensor? scales2=None, Tensor? zero_points2=None, *, int axis=-1, "
        f"{_EPS}, bool div_mode=True, int? dst_type=None) -> (Tensor, Tensor, Tensor)",
        add_rms_norm_quant,
    ),
    HostOp(
        "npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? smooth_scale1=None, "
        f"Tensor? smooth_scale2=None, Tensor? beta=None, {_EPS}, bool[2]? output_mask=None, int? y_dtype=None) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        add_rms_norm_dynamic_quant,
    ),
)

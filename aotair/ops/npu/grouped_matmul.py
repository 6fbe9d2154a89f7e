"""Matrix products of groups: each group of rows meets a matrix of its own, as in a mixture of experts.

Source: the documentation of torch_npu's `npu_grouped_matmul` (aclnnGroupedMatmul, V2 to V5).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse
from .quant_matmul import int8_product, rescale

_OP = "npu_grouped_matmul"
# What `output_dtype` stands for where it is a number.
_OUTPUTS = {3: torch.int32, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)

Parts = Sequence[Tensor] | None


def _each(parts: Parts, groups: int) -> list[Tensor | None]:
    """One for each group: what a list of one tensor has along its first dimension, or a list has itself."""
    if not parts:
        return [None] * groups
    return list(parts[0].unbind(0)) if len(parts) == 1 and parts[0].dim() > 1 else list(parts)


def _experts(weight: Sequence[Tensor]) -> list[Tensor]:
    """The matrices (k, n): those of one tensor (groups, k, n), or of a list."""
    return list(weight[0].unbind(0)) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)


def _dtype(x: Tensor, output_dtype: int | torch.dtype | None) -> torch.dtype:
    """That of the result: as said, or that of x."""
    if output_dtype is None:
        return x.dtype
    if isinstance(output_dtype, torch.dtype):
        only(_OP, "output_dtype", output_dtype, _OUTPUTS.values())
        return output_dtype
    only(_OP, "output_dtype", output_dtype, _OUTPUTS)
    return _OUTPUTS[output_dtype]


def _sizes(group_list: Tensor | Sequence[int] | None, group_list_type: int) -> list[int] | None:
    """How many rows each group has: as said (type 1), or the differences of their ends (type 0)."""
    if group_list is None:
        return None
    numbers = group_list.tolist() if isinstance(group_list, Tensor) else list(group_list)
    return numbers if group_list_type == 1 else [end - start for start, end in zip([0, *numbers[:-1]], numbers)]


def _check(
    x: Sequence[Tensor],
    group_list: Tensor | Sequence[int] | None,
    split_item: int | None,
    group_type: int | None,
    group_list_type: int | None,
    **unserved: object,
) -> None:
    refuse(_OP, unserved)
    numbers = isinstance(group_list, (list, tuple))
    only(_OP, "group_type", group_type, (None, 0) if numbers else (-1, 0))
    only(_OP, "group_list_type", group_list_type, (0,) if numbers else (0, 1))
    # The device makes a result for each x with 0, and one for each group of a list with 1.
    only(_OP, "split_item", split_item, (1, 2, 3) if numbers else (2, 3) if group_list is not None else (0, 2, 3))
    if group_list is not None and group_type == -1:
        raise ValueError(f"{_OP} takes no group_list with group_type=-1")
    if group_list is not None and len(x) != 1:
        raise Unserved(f"the host kernel of {_OP} takes a group_list for a single x")


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, rows: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """One group: `x @ weight + bias` in float32, or that of int8 scaled as in `npu_quant_matmul`, or left in int32."""
    if x.dtype in _FLOATS and weight.dtype in _FLOATS:  # a weight of int8 is in float32 by now
        if scale is not None or rows is not None:
            raise Unserved(f"the host kernel of {_OP} takes a scale for x of int8, not {x.dtype}")
        wide = torch.matmul(x.float(), weight.float())
        return (wide if bias is None else wide + bias.float()).to(dtype)
    if x.dtype != torch.int8 or weight.dtype != torch.int8:
        raise Unserved(f"the host kernel of {_OP} takes no x of {x.dtype} with weight of {weight.dtype}")
    product = int8_product(x, weight)
    if dtype == torch.int32 and scale is None and rows is None and (bias is None or bias.dtype == torch.int32):
        return product if bias is None else product + bias
    if scale is None or scale.dtype not in (torch.float32, torch.bfloat16) or dtype not in _FLOATS[:2]:
        wanted = "a scale of float32 or bfloat16 and an output_dtype of float16 or bfloat16, or neither and int32"
        raise Unserved(f"the host kernel of {_OP} takes int8 with {wanted}")
    return rescale(product, scale, rows, bias).to(dtype)


def _check_antiquant(x: Tensor, weight: Sequence[Tensor], **given: Parts) -> None:
    """What makes floats of a weight of int8 is a scale and an offset for each column, in the dtype of x."""
    if not any(given.values()):
        return
    if x.dtype not in _FLOATS[:2] or any(part.dtype != torch.int8 for part in weight):
        pair = f"x of {x.dtype} with weight of {weight[0].dtype}"
        raise Unserved(f"the host kernel of {_OP} takes antiquant_scale beside halves and int8, not {pair}")
    for name, parts in given.items():
        each = _each(parts, len(weight))
        if any(p is None or p.dtype != x.dtype or p.shape != w.shape[-1:] for p, w in zip(each, weight, strict=True)):
            raise Unserved(f"the host kernel of {_OP} takes {name} of {x.dtype}, a number for each column")


def _widened(weight: Sequence[Tensor], scales: Parts, offsets: Parts) -> list[Tensor]:
    """`(weight + offset) * scale` of int8 in float32, or the weights as they are."""
    if not scales:
        return list(weight)
    parts = zip(weight, _each(offsets, len(weight)), _each(scales, len(weight)), strict=True)
    return [(w.float() + offset.float()) * scale.float() for w, offset, scale in parts]  # type: ignore[union-attr]


def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Parts = None,
    scale: Parts = None,
    antiquant_scale: Parts = None,
    antiquant_offset: Parts = None,
    per_token_scale: Parts = None,
    group_list: Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | torch.dtype | None = None,
    **unserved: object,
) -> list[Tensor]:
    """`y[i] = x[i] @ weight[i] + bias[i]` for each group i; int8 with scale[i] and per_token_scale[i] as in
    `npu_quant_matmul`; a weight of int8 beside float16 and bfloat16 is `(weight[i] + antiquant_offset[i]) *
    antiquant_scale[i]`.

    weight is a list of (k, n), or of one (groups, k, n), float16, bfloat16, float32 or int8; x is a list of as many
    (m[i], k), or of one (m, k) whose rows group_list divides (group_type 0): by the ends of the groups, or with
    group_list_type 1 by their sizes. bias, scale and those of antiquant are lists like weight of (n,), or of one
    (groups, n); per_token_scale is a list of (m,) like x. Each x is a result of its own with split_item 0, and each
    group of a list of numbers with 1; with 2 and 3 all are one (m, n), where rows of no group are zero. The dtype is
    that of x without an output_dtype. tuning_config changes nothing here.
    """
    _check(x, group_list, split_item, group_type, group_list_type, **unserved)
    experts, sizes = _experts(weight), _sizes(group_list, group_list_type or 0)
    _check_antiquant(x[0], experts, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset)
    inputs, rows = list(x), _each(None, len(experts)) if not per_token_scale else list(per_token_scale)
    if sizes is not None:
        used = sum(sizes)
        if len(sizes) != len(experts) or used > x[0].shape[0] or min(sizes) < 0:
            raise ValueError(f"group_list makes groups of {sizes} for {len(experts)} experts and {x[0].shape[0]} rows")
        inputs = list(x[0][:used].split(sizes))
        rows = list(per_token_scale[0][:used].split(sizes)) if per_token_scale else rows
    dtype = _dtype(x[0], output_dtype)
    experts = _widened(experts, antiquant_scale, antiquant_offset)
    each = inputs, experts, _each(bias, len(experts)), _each(scale, len(experts)), rows
    groups = [_product(*parts, dtype) for parts in zip(*each, strict=True)]
    if split_item in (0, 1):
        return groups
    result = x[0].new_zeros((sum(part.shape[0] for part in x), experts[0].shape[-1]), dtype=dtype)
    done = torch.cat(groups)
    result[: done.shape[0]] = done
    return [result]


def _shape(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    group_list: Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    output_dtype: int | torch.dtype | None = None,
    bias: Parts = None,
    scale: Parts = None,
    antiquant_scale: Parts = None,
    antiquant_offset: Parts = None,
    per_token_scale: Parts = None,
    tuning_config: Sequence[int] | None = None,
    **unserved: object,
) -> list[Tensor]:
    _check(x, group_list, split_item, group_type, group_list_type, **unserved)
    dtype, widths = _dtype(x[0], output_dtype), [part.shape[-1] for part in _experts(weight)]
    _check_antiquant(x[0], _experts(weight), antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset)
    if split_item in (2, 3):
        return [x[0].new_empty((sum(part.shape[0] for part in x), widths[0]), dtype=dtype)]
    sizes = _sizes(group_list, 0)
    if sizes is not None:
        return [x[0].new_empty(size, width, dtype=dtype) for size, width in zip(sizes, widths)]
    return [part.new_empty((*part.shape[:-1], width), dtype=dtype) for part, width in zip(x, widths)]


_LISTS = (
    "Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None, "
    "Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None"
)
_ACTIVATION = (
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, "
    "Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, int? group_list_type=0, "
    "int? act_type=0"
)

OPS = (
    HostOp(
        f"{_OP}({_LISTS}, Tensor? group_list=None, {_ACTIVATION}, int[]? tuning_config=None, int? output_dtype=None, "
        "int? x_dtype=None, int? weight_dtype=None, int? scale_dtype=None, int? per_token_scale_dtype=None) "
        "-> Tensor[]",
        grouped_matmul,
        _shape,
    ),
    HostOp(
        f"{_OP}.List({_LISTS}, int[]? group_list=None, {_ACTIVATION}, ScalarType? output_dtype=None) -> Tensor[]",
        grouped_matmul,
        _shape,
    ),
)

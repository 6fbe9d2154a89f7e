"""`torch.ops.air.dynamic_quant` and `air::quant_matmul`: linear layers whose products are those of int8, on the CPU.

They are what `npu_dynamic_quant` and `npu_quant_matmul` are to NPUs. Here they are made of torch's ops; where a library
of oneDNN is installed, nodes call that instead (`onednn_int8`), which gives the same bits. Torch's kernel cuts sums off
on processors without VNNI: `artifact.requirements` refuses these.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from .results import check_out

_AT_A_TIME = 1 << 19  # numbers of a result, each held twice, in four bytes: 4 MiB
_CACHED = 1 << 15  # numbers whose absolute values lie in a cache
# As tensors, because torch makes one of a number in each call.
_ZERO = torch.zeros((), dtype=torch.float32, device="cpu")
_STEP = torch.tensor(1 / 127, dtype=torch.float32, device="cpu")
_SMALLEST = torch.tensor(torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_SCHEMA = "(Tensor x, Tensor weight, Tensor scale, Tensor? pertoken_scale, Tensor? bias, ScalarType output_dtype"
Given: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
_library = torch.library.Library("air", "FRAGMENT")


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of floats as whole numbers, `round(x / scale)`, and the scale of each, its largest absolute value over 127.

    x: (rows, k) float32, bfloat16 or float16. Gives int8 (rows, k) and float32 (rows, 1). The smallest normal number is
    added to scales, so that none is 0, and numbers are multiplied by the reciprocal. Of a row with a NaN or an infinity
    the scale is NaN, and the numbers mean nothing.
    """
    return _quantise(x, *_empty_rows(x))


def _dynamic_quant_out(x: Tensor, *, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return _quantise(x, *_empty_rows_out(x, tokens=tokens, scale=scale))


def _quantise(x: Tensor, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    row_scales(x, scale)
    for rows in _parts(x.shape):
        tokens[rows].copy_((x[rows].float() * scale[rows].reciprocal()).round_())
    return tokens, scale


def _parts(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of a matrix, a few MiB of floats at a time."""
    step = max(1, _AT_A_TIME // shape[1])
    return (slice(start, start + step) for start in range(0, shape[0], step))


def row_scales(x: Tensor, scale: Tensor) -> None:
    """Into (rows, 1) float32: the largest absolute value of each row over 127, and the smallest normal number; NaN for
    a row that is not finite."""
    into = {"out": scale} if x.dtype == torch.float32 else {}
    if x.numel() <= _CACHED:
        greatest = torch.amax(torch.abs(x), 1, True, **into)
    else:  # twice through what is there is faster than to write and to read as much again
        greatest = torch.amax(x, 1, True, **into)
        torch.maximum(greatest, torch.amin(x, 1, True).neg_(), out=greatest)
    greatest = greatest.float()
    torch.addcmul(torch.addcmul(_SMALLEST, greatest, _ZERO), greatest, _STEP, out=scale)  # infinity times zero is NaN


def quant_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype,
) -> Tensor:
    """`(x @ weight.T) * pertoken_scale * scale + bias`: the products are summed exactly, the rest is of float32.

    x: (rows, k) int8; weight: (n, k) int8; scale: (n,) float32; pertoken_scale: (rows, 1) float32, or None for 1; bias:
    (n,) float32 or None. The result (rows, n) is of `output_dtype`: float32, bfloat16 or float16.
    """
    given = x, weight, scale, pertoken_scale, bias
    return _multiply(_empty(*given, output_dtype), given)


def _quant_matmul_out(*given: Any, out: Tensor) -> Tensor:
    return _multiply(_empty_out(*given, out=out), given[:-1])


def _multiply(out: Tensor, given: Given) -> Tensor:
    x, weight, scale, pertoken_scale, bias = given
    if not out.numel():
        return out
    if x.shape[1] == 1:  # torch's kernel is wrong for rows of one number
        x, weight = pad(x, (0, 1)), pad(weight, (0, 1))
    weight = weight.contiguous().t()
    for rows in _parts(out.shape):
        made = torch._int_mm(x[rows].contiguous(), weight).float()
        if pertoken_scale is not None:
            made.mul_(pertoken_scale[rows])
        made.mul_(scale)
        out[rows].copy_(made if bias is None else made.add_(bias))
    return out


def _empty_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.dim() != 2 or x.dtype not in _FLOATS or not x.shape[1]:
        raise ValueError(f"dynamic_quant takes floats (rows, k) with k of at least 1: {x.dtype} {list(x.shape)}")
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((x.shape[0], 1), dtype=torch.float32)


def _empty_rows_out(x: Tensor, *, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    for out, made in zip((tokens, scale), _empty_rows(x)):
        check_out("dynamic_quant", out, made.shape, made.dtype)
    return tokens, scale


def _empty(*given: Any) -> Tensor:
    made: Tensor = given[0].new_empty(_size(given[:-1], given[-1]), dtype=given[-1])
    return made


def _empty_out(*given: Any, out: Tensor) -> Tensor:
    return check_out("quant_matmul", out, _size(given[:-1], given[-1]), given[-1])


def _size(given: Given, kind: torch.dtype) -> tuple[int, int]:
    """The shape of the result; raises ValueError where the arguments do not fit each other."""
    x, weight, scale, pertoken_scale, bias = given
    fits = x.dim() == weight.dim() == 2 and x.dtype == weight.dtype == torch.int8 and kind in _FLOATS
    fits = fits and x.shape[1] == weight.shape[1] and x.shape[1] > 0
    factors = [(scale, weight.shape[:1]), (pertoken_scale, (x.shape[0], 1)), (bias, weight.shape[:1])]
    if not fits or not all(_is_factor(one, shape) for one, shape in factors if one is not None):
        said = ", ".join("None" if one is None else f"{one.dtype} {list(one.shape)}" for one in given)
        raise ValueError(
            f"quant_matmul takes int8 x (rows, k) and weight (n, k), float32 scale (n,), pertoken_scale (rows, 1) and "
            f"bias (n,), and makes floats: {said}, {kind}"
        )
    return x.shape[0], weight.shape[0]


def _is_factor(one: Tensor, shape: Sequence[int]) -> bool:
    return one.dtype == torch.float32 and tuple(one.shape) == tuple(shape)


_library.define("dynamic_quant(Tensor x) -> (Tensor tokens, Tensor scale)")
_library.define("dynamic_quant.out(Tensor x, *, Tensor(a!) tokens, Tensor(b!) scale) -> (Tensor(a!), Tensor(b!))")
_library.define(f"quant_matmul{_SCHEMA}) -> Tensor")
_library.define(f"quant_matmul.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("dynamic_quant", dynamic_quant, _empty_rows),
    ("dynamic_quant.out", _dynamic_quant_out, _empty_rows_out),
    ("quant_matmul", quant_matmul, _empty),
    ("quant_matmul.out", _quant_matmul_out, _empty_out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
QUANTISE, MULTIPLY = torch.ops.air.dynamic_quant.default, torch.ops.air.quant_matmul.default

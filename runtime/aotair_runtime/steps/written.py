"""What is a step, and how is it written for the library?

The numbers and the layout are those of `kernels/src/step.h`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..devices.results import meet

DIMS = 5
# What the kernels take for granted: numbers of a row; queries that meet the same keys, and numbers of each; rows of a
# product, and their numbers.
ROW, TOGETHER, WIDTH, MOST_ROWS, MOST_WIDE = 8192, 64, 256, 16, 131072
MOST = 1 << 16  # numbers of a result: with more, the call itself is what takes time
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TYPES = {dtype: number for number, dtype in enumerate((*FLOATS, torch.bool, torch.int64, torch.int32, torch.int8))}
HEAD, OPERAND = struct.Struct(f"<iiq{DIMS + 1}qd2q"), struct.Struct(f"<q{DIMS}qq")
LAYOUT = 3_000_000 + HEAD.size * 1000 + OPERAND.size  # its number, and the bytes of a step and of an operand


@dataclass(frozen=True)
class Steps:
    """Steps as bytes, how many they are, and tensors whose memory they speak of that nobody else keeps."""

    data: bytes
    count: int
    kept: tuple[Tensor, ...] = ()

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(self.data + other.data, self.count + other.count, self.kept + other.kept)


@dataclass(frozen=True)
class Lies:
    """Where a tensor lies, in the dimensions that are gone over."""

    address: int
    strides: tuple[int, ...]
    kind: int


def in_order(out: Tensor, read: Sequence[Tensor]) -> bool:
    """Whether each number is read before it is written, whatever the order, and none is written twice."""
    if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape)):
        return False
    for one in read:
        same = one.data_ptr() == out.data_ptr() and one.stride() == out.stride() and one.dtype == out.dtype
        if not same and meet(one, out):
            return False
    return True


def are_apart(out: Tensor, read: Sequence[Tensor]) -> bool:
    """Whether nothing that is read is written, and nothing is written twice."""
    return in_order(out, ()) and not any(meet(one, out) for one in read)


def step(
    op: int,
    size: Sequence[int],
    tensors: Sequence[Tensor],
    *,
    number: float = 0.0,
    whole: tuple[int, int] = (0, 0),
    last: bool = False,
    kept: tuple[Tensor, ...] = (),
) -> Steps | None:
    """A step over `size`, in as few dimensions as do, in the order in which the first of the tensors lies; `last`: the
    last of them stays apart, and all where they are."""
    order, spread = list(range(len(size))), [one.stride() for one in tensors]
    if not last:
        order.sort(key=lambda dim: -spread[0][dim])
    lies = [Lies(one.data_ptr(), own, TYPES.get(one.dtype, 0)) for one, own in zip(tensors, spread)]
    sizes, strides = _in_few_dimensions(_in(order, size), [_in(order, own) for own in spread], last)
    if len(sizes) > DIMS:
        return None
    placed = [Lies(one.address, each, one.kind) for one, each in zip(lies, strides)]
    return Steps(written(op, len(sizes), sizes, placed, number, whole), 1, kept)


def _in(order: Sequence[int], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(numbers[dim] for dim in order)


def written(
    op: int,
    dims: int,
    sizes: Sequence[int],
    operands: Sequence[Lies],
    number: float,
    whole: tuple[int, int],
) -> bytes:
    head = HEAD.pack(op, dims, len(operands), *_padded(sizes, DIMS + 1), number, *whole)
    return head + b"".join(OPERAND.pack(one.address, *_padded(one.strides, DIMS), one.kind) for one in operands)


def _padded(numbers: Sequence[int], count: int) -> list[int]:
    return [*numbers, *[0] * (count - len(numbers))]


def _in_few_dimensions(
    size: tuple[int, ...], strides: Sequence[tuple[int, ...]], last: bool
) -> tuple[list[int], list[tuple[int, ...]]]:
    """The same in as few dimensions as do: without those of size 1, and those that lie behind each other as one."""
    own = len(size) - 1 if last else len(size)
    sizes, found = list[int](), list[list[int]]()
    for dim in range(own):
        each = [one[dim] for one in strides]
        if size[dim] == 1:
            continue
        if sizes and all(before == after * size[dim] for before, after in zip(found[-1], each)):
            sizes[-1] *= size[dim]
            found[-1] = each
        else:
            sizes.append(size[dim])
            found.append(each)
    if last or not sizes:
        sizes.append(size[-1] if last else 1)
        found.append([one[-1] for one in strides] if last else [1] * len(strides))
    return sizes, [tuple(dim[place] for dim in found) for place in range(len(strides))]

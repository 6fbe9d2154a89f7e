"""What does an instruction move and compute, as its shapes say? Bytes, and floating-point operations."""

import math
from dataclasses import dataclass

from ..format.packed import tensor_numbers
from ..format.schema import Bucket, Instruction, Layout, Program
from ..format.torch_names import dtype

# Ops that read as much of their first tensor as they give results, and ops that write as much of it as they are given.
_LOOKUPS = ("index_select", "gather", "embedding", "index", "_unsafe_index")
_SCATTERS = ("index_copy", "index_copy_", "index_put", "index_put_", "scatter", "scatter_", "scatter_update_")
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul")
_ATTENTION = "scaled_dot_product"


@dataclass(frozen=True)
class Cost:
    """Bytes that an instruction reads and writes, each tensor once, and its floating-point operations: those of its
    products, or else one for each number of its results; none where it only moves numbers, or where how much it
    computes follows from what lies in its tensors (attention over a paged cache)."""

    nbytes: int
    flops: int


def cost(program: Program, bucket: Bucket, instruction: Instruction) -> Cost:
    """What one instruction of a bucket moves and computes; nothing for an event."""
    if instruction.is_event:
        return Cost(0, 0)
    name = program.ops[instruction.op].name.split("::")[-1].split(".")[0]
    given = list(tensor_numbers((*instruction.args, *(value for _, value in instruction.kwargs))))
    results = [number for number in instruction.outs if number >= 0] or given[:1]
    layouts = {number: _layout(program, bucket, number) for number in (*given, *results)}
    sizes = {number: _numbers(layout) * _item(layout) for number, layout in layouts.items()}
    made = sum(_numbers(layouts[number]) for number in results)
    return Cost(_moved(name, given, results, sizes), _flops(name, given, results, layouts, made))


def _moved(name: str, given: list[int], results: list[int], sizes: dict[int, int]) -> int:
    if given and name in _LOOKUPS:
        written = sum(sizes[number] for number in results)
        return 2 * written + sum(sizes[number] for number in {*given[1:]} - {*results})
    if given and name in _SCATTERS:
        return sum(sizes[number] for number in {*given[1:]}) + max((sizes[n] for n in given[1:]), default=0)
    return sum(sizes.values())


_MOVES = (*_LOOKUPS, *_SCATTERS, "copy_", "clone", "cat", "fill_", "zero_", "_to_copy")


def _flops(name: str, given: list[int], results: list[int], layouts: dict[int, Layout], made: int) -> int:
    shapes = [layouts[number].shape for number in given]
    if _ATTENTION in name and len(shapes) >= 3 and all(len(shape) >= 2 for shape in shapes[:3]):
        query, key, value = shapes[:3]
        return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if "convolution" in name and len(shapes) >= 2:
        moved_in = _numbers(layouts[given[0]]) > made  # a transposed one is the other way round: count the larger side
        return 2 * (_numbers(layouts[given[0]]) if moved_in else made) * math.prod(shapes[1][1:])
    if _is_product(name) and shapes:
        left = shapes[1] if name in ("addmm", "baddbmm") and len(shapes) > 1 else shapes[0]
        return 2 * _numbers(layouts[results[0]]) * (left[-1] if left else 1)
    return 0 if name in _MOVES or "attention" in name else made


def _is_product(name: str) -> bool:
    plain = name.strip("_")
    return plain in _PRODUCTS or plain.endswith(("_matmul", "_mm")) or "pack_mm" in plain


def _layout(program: Program, bucket: Bucket, number: int) -> Layout:
    return program.layouts[bucket.tensors[number].layout]


def _numbers(layout: Layout) -> int:
    return math.prod(layout.shape)


def _item(layout: Layout) -> int:
    return dtype(layout.dtype).itemsize

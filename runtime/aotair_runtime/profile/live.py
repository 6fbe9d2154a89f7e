"""How many bytes of the arena hold something that will be read, at each instruction of a bucket?"""

import bisect
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from ..format.extents import reach
from ..format.packed import tensor_numbers
from ..format.schema import Bucket, Form, Instruction, Program, Space
from ..format.torch_names import dtype
from ..format.written import written_arguments, written_names

_OVERWRITE = ("copy_", "fill_", "zero_")  # ops that do not read what they write into
Range = tuple[int, int]  # of bytes in the arena


class Known(Protocol):
    """An op of which the schema is known, whether or not it is there."""

    @property
    def _schema(self) -> torch.FunctionSchema: ...


def live_bytes(program: Program, bucket: Bucket, ops: Sequence[Known]) -> list[int]:
    """For each instruction of the bucket's code, in order: a byte lives from the instruction that writes it to the last
    that reads it before it is written again; inputs from the first instruction on, outputs up to the last."""
    ranges = {number: _range(program, bucket, number) for number in range(len(bucket.tensors))}
    cuts = sorted({cut for found in ranges.values() if found for cut in found})
    places = zip(bucket.inputs, bucket.input_offsets)
    copied = [(offset, offset + _nbytes(program, bucket, n)) for n, offset in places if offset >= 0]
    cuts = sorted({*cuts, *(cut for found in copied for cut in found)})
    steps = [_touched(program, program.instructions[number], ops) for number in bucket.code]
    began = {part: 0 for found in copied for part in _parts(cuts, found)}  # by part: where its value was written
    changes = [0] * (len(steps) + 1)
    last = dict.fromkeys(began, -1)  # an input that nobody reads lives nowhere
    for step, (read, written) in enumerate(steps):
        for part in _of(read, ranges, cuts):
            last[part] = step
            began.setdefault(part, step)
        for part in {*_of(written, ranges, cuts)} - {*_of(read, ranges, cuts)}:
            _close(changes, part, began, last, cuts)
            began[part] = last[part] = step
    for part in _of(bucket.outputs, ranges, cuts):
        last[part] = len(steps) - 1
        began.setdefault(part, len(steps) - 1)
    for part in list(began):
        _close(changes, part, began, last, cuts)
    return _sums(changes)[: len(steps)]


def _close(changes: list[int], part: int, began: dict[int, int], last: dict[int, int], cuts: Sequence[int]) -> None:
    """The value that lay in a part is gone: count its bytes from where it began to where it was last read."""
    if part in began and len(changes) > 1:
        size = cuts[part + 1] - cuts[part]
        changes[began.pop(part)] += size
        changes[last.pop(part) + 1] -= size


def _sums(changes: Sequence[int]) -> list[int]:
    total, found = 0, []
    for change in changes:
        total += change
        found.append(total)
    return found


def _touched(program: Program, item: Instruction, ops: Sequence[Known]) -> tuple[list[int], list[int]]:
    """The tensors that an instruction reads, and those that it writes."""
    if item.is_event:
        return [], []
    schema = ops[item.op]._schema
    written = [n for n in item.outs if n >= 0]
    into = [arg.index for arg in written_arguments(item, schema, written_names(schema))]
    overwrites = item.form == Form.EFFECT and program.ops[item.op].name.split("::")[-1].split(".")[0] in _OVERWRITE
    read = list(tensor_numbers((*item.args[overwrites:], *(value for _, value in item.kwargs))))
    return read, [*written, *into]


def _of(numbers: Sequence[int], ranges: dict[int, Range | None], cuts: Sequence[int]) -> Iterator[int]:
    for number in numbers:
        found = ranges[number]
        if found is not None:
            yield from _parts(cuts, found)


def _parts(cuts: Sequence[int], found: Range) -> range:
    return range(bisect.bisect_left(cuts, found[0]), bisect.bisect_left(cuts, found[1]))


def _range(program: Program, bucket: Bucket, number: int) -> Range | None:
    """Where a tensor lies in the arena; None for one that lies elsewhere."""
    place = bucket.tensors[number]
    if place.space == Space.INPUT and bucket.input_offsets and bucket.input_offsets[place.index] >= 0:
        start = bucket.input_offsets[place.index] + place.offset
    elif place.space == Space.ARENA:
        start = place.offset
    else:
        return None
    nbytes = _nbytes(program, bucket, number)
    return (start, start + nbytes) if nbytes else None


def _nbytes(program: Program, bucket: Bucket, number: int) -> int:
    """From a tensor's first byte to the end of its last."""
    layout = program.layouts[bucket.tensors[number].layout]
    return reach(layout.shape, layout.strides) * dtype(layout.dtype).itemsize

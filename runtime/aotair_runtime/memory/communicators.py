"""How large are the buffers of the communicators over which NPUs meet?"""

from collections.abc import Iterator

from ..confine.arguments import arguments_by_name
from ..devices.exchange import DISPATCH
from ..format.schema import Bucket, GroupArg, Instruction, Program, TensorArg

_MIB, _LEAST = 1 << 20, 200  # MiB, which HCCL takes where nobody says anything
_MOST_EXPERTS = 1 << 16


def plain_buffer(program: Program) -> int | None:
    """The MiB of each of the two buffers of a communicator for all but experts' tokens; None where the node's
    environment says it."""
    return -(-program.reserve.buffer // _MIB) or None


def communicator_bytes(program: Program) -> int:
    """What the buffers of all communicators take that the program says the size of."""
    apart = expert_buffers(program) if program.mesh else {}
    return 2 * _MIB * ((plain_buffer(program) or 0) * len(program.mesh) + sum(apart.values()))


def expert_buffers(program: Program) -> dict[int, int]:
    """By the number of an axis of the mesh along which tokens are exchanged: the MiB of each of the two buffers, for
    the largest bucket."""
    found: dict[int, int] = {}
    for bucket in (bucket for entry in program.entry_points for bucket in entry.buckets):
        for item in (program.instructions[number] for number in bucket.code):
            if item.op >= 0 and program.ops[item.op].name == DISPATCH.name():
                for axis, need in _need(program, bucket, item):
                    found[axis] = max(found.get(axis, _LEAST), -(-need // _MIB))
    return found


def _need(program: Program, bucket: Bucket, item: Instruction) -> Iterator[tuple[int, int]]:
    """The axis of a call, and the bytes that it takes; nothing of one that a load is going to refuse."""
    given = arguments_by_name(item, DISPATCH)
    x, experts, number, group = map(given.get, ("x", "experts", "number", "group"))
    if isinstance(x, TensorArg) and isinstance(experts, TensorArg) and isinstance(group, GroupArg):
        rows, chosen = (program.layouts[bucket.tensors[arg.index].layout].shape for arg in (x, experts))
        if len(rows) == len(chosen) == 2 and type(number) is int and 0 < number <= _MOST_EXPERTS:
            yield group.axis, buffer_bytes(rows[0], rows[1], chosen[1], number)


def buffer_bytes(tokens: int, width: int, chosen: int, number: int) -> int:
    """What the exchange of `tokens` rows of halves of each rank, each for `chosen` of `number` experts, takes.

    Source: the documentation of torch_npu's `npu_moe_distribute_dispatch_v2`, of HCCL_BUFFSIZE on Atlas A3.
    """
    row = 2 * width
    sent = _up(_up(row, 32) + 64, 512)
    return 2 * tokens * (number * sent + chosen * _up(row, 512))


def _up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step

"""What an artifact takes of memory, as tables: by purpose, by bucket, and what ops allocate beside the plans."""

from collections.abc import Iterator

from aotair_runtime.devices.allocators import ALLOCATORS
from aotair_runtime.errors import in_line
from aotair_runtime.format.schema import Program
from aotair_runtime.format.text import table
from aotair_runtime.memory.promise import Promise


def memory_text(program: Program, promised: Promise) -> str:
    """All three tables."""
    return "\n\n".join(_parts(program, promised))


def memory_dict(program: Program, promised: Promise) -> dict[str, object]:
    """The same for scripts."""
    beside = [dict(zip(("op", "stream", "calls", "nbytes"), row)) for row in _beside(program)]
    return {**promised.as_dict(), "beside_the_arena": beside}


def _parts(program: Program, promised: Promise) -> Iterator[str]:
    yield f"{in_line(program.name)} on {promised.kind}\n{promised}\n{ALLOCATORS[promised.kind].says}"
    yield promised.by_bucket()
    rows = [[name, stream, f"{calls:,}", f"{nbytes:,}"] for name, stream, calls, nbytes in _beside(program)]
    if rows:
        yield "ops that allocate their results\n" + table(["op", "stream", "calls at most", "bytes at a time"], rows)
    if program.reserve.workspace or promised.kind != "cpu":
        yield f"workspaces of kernels, for each stream (target.workspace): {program.reserve.workspace:,} bytes"


def _beside(program: Program) -> Iterator[tuple[str, int, int, int]]:
    """By op and stream: the most calls and bytes of any bucket, the largest first."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for entry in program.entry_points:
        for bucket in entry.buckets:
            for item in bucket.fresh:
                key = (program.ops[item.op].name, item.stream)
                calls, nbytes = found.get(key, (0, 0))
                found[key] = (max(calls, item.calls), max(nbytes, item.nbytes))
    rows = [(name, stream, calls, nbytes) for (name, stream), (calls, nbytes) in found.items()]
    return iter(sorted(rows, key=lambda row: (-row[3], row[0], row[1])))

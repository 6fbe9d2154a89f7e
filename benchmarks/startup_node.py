"""What a serving node does, in a process of its own: load, answer once, answer in all shapes; prints JSON.

    python -m benchmarks.startup_node aotair ARTIFACT
    python -m benchmarks.startup_node aoti PACKAGE PACKAGE PACKAGE

Nothing is imported here that a node would not import: the clock starts right after `import torch`.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import torch

BATCHES, LENGTHS = (1, 8, 32), (16, 32, 64, 128, 256)
# What a node must never import.
_HEAVY = (
    "click", "pydantic", "yaml", "rich", "sympy", "transformers", "torch._dynamo", "torch._inductor", "aotair.builder",
    "aotair.passes",
)  # fmt: skip


def main(peer: str, *paths: str) -> None:
    resident = _resident()
    start = time.perf_counter()
    answer = {"aotair": _aotair, "aoti": _aoti}[peer](*paths)
    answer(*_smallest(BATCHES[0]))
    first = time.perf_counter() - start
    for batch in BATCHES[1:]:
        answer(*_smallest(batch))
    three = time.perf_counter() - start
    for batch in BATCHES:
        for length in LENGTHS:
            answer(torch.randint(0, 30522, (batch, length)), torch.ones(batch, length, dtype=torch.int64))
    heavy = [name for name in _HEAVY if name in sys.modules]
    print(json.dumps({"first": first, "three": three, "resident": _resident() - resident, "heavy": heavy}))


def _aotair(path: str) -> Callable:
    import aotair

    return aotair.load(path)


def _aoti(*paths: str) -> Callable:
    from torch._inductor import aoti_load_package

    models = {batch: aoti_load_package(path) for batch, path in zip(BATCHES, paths, strict=True)}
    return lambda ids, mask: models[ids.shape[0]](ids, mask)


def _smallest(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.full((batch, LENGTHS[0]), 7), torch.ones(batch, LENGTHS[0], dtype=torch.int64))


def _resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])

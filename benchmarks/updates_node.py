"""What the process of the benchmark of updates does: `python -m benchmarks.updates_node ARTIFACT`; prints JSON.

The kernel is one that does nothing but go to the stream; what it costs by itself is measured and stated apart.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

import simkernels
import simnpu
import torch

import aotair.ops.npu  # defines what torch_npu lacks
from aotair_runtime.call.host_time import without_replay

from .updates_model import BATCH, LONGEST

CALLS = 1000


def attention(*_args, out, **_kwargs):
    simkernels.launch(_nothing)
    return tuple(out)


def _nothing() -> None:
    pass


def workspace(query, *_args, **_kwargs):
    return query.new_empty(1)


def main() -> None:
    simnpu.install()
    torch.npu.set_device(0)

    library = torch.library.Library("npu", "FRAGMENT")
    for name, kernel in (
        ("npu_fused_infer_attention_score.out", attention),
        ("_npu_fused_infer_attention_score_get_max_workspace", workspace),
    ):
        library.impl(name, kernel, "PrivateUse1", allow_override=True)
    model = aotair.load(sys.argv[1], device="npu", enable_output_clone=False)
    x, keys = torch.ones(BATCH, 1, 16).npu(), torch.ones(BATCH, LONGEST, 16).npu()
    steps = itertools.cycle([[1 + (step + row) % LONGEST for row in range(BATCH)] for step in range(LONGEST)])
    same = next(steps)
    with simnpu.null_device():
        model(x, keys, same)
        graph = model.forward._plans.last.plan.captured.graph
        naive = Naive(graph)
        rows = {
            "unchanged": lambda: model(x, keys, same),
            "changed": lambda: model(x, keys, next(steps)),
            "naive": lambda: naive.step(next(steps)),
            "op": lambda: naive.ops(next(steps)),
        }
        with without_replay(model.forward, [x, keys, same]):
            found = {"entry": microseconds(rows["unchanged"])}
        for _ in range(3):
            for name, call in rows.items():
                found[name] = min(found.get(name, 1e9), microseconds(call))
    print(json.dumps(found | {"nodes": len(graph._nodes)}))


class Naive:
    """A replay as TorchAir makes it: each node's arguments put together and its group updated, changed or not."""

    def __init__(self, graph):
        self._graph, self._stream = graph, torch.npu.Stream(priority=-1)
        self._done = torch.npu.Event()

    def step(self, lengths: list[int]) -> None:
        current = torch.npu.current_stream()
        self._done.record(current)
        self._graph._graph.replay()
        with torch.npu.stream(self._stream):
            self._stream.wait_event(self._done)
            for node in self._graph._nodes:
                call = node.call
                torch.npu.graph_task_update_begin(self._stream, node.group)
                call._op(*list(call._args), **(dict(call._kwargs) | {"actual_seq_lengths_kv": list(lengths)}))
                torch.npu.graph_task_update_end(self._stream)
                node.gate.record(self._stream)

    def ops(self, lengths: list[int]) -> None:
        """The op's own calls, each as an update that nothing waits for."""
        begin, end = self._graph._updates.update_begin, self._graph._updates.update_end
        torch.npu.set_stream(self._stream)
        for node in self._graph._nodes:
            call = node.call
            begin(self._stream, node.group)
            call._op(*call._args, **call._kwargs)
            end(self._stream)
        torch.npu.set_stream(torch.npu.default_stream())


def microseconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.npu.synchronize()
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()

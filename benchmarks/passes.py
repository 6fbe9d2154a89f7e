"""What the passes do to a decoder with caches, and how long they take on large graphs.

Peer: the same line with the passes switched off, as stock TorchAir's options do.
"""

import statistics
import time

import torch

from aotair.export.export import export
from aotair.model.load import load_model
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.program import build_program
from aotair.recipe.config import CompilerConfig
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.target.target import Target

from .common import Row, options, report
from .decoder import HEADS, HIDDEN, POSITIONS, recipe

LAYERS = 24


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timings of each large graph")
    given = parser.parse_args()
    with_passes, without = (_decoder(off) for off in (False, True))
    seconds = {nodes: statistics.median(_seconds(nodes) for _ in range(given.rounds)) for nodes in (5_000, 10_000)}
    off = f"off: {_whole_copies(without)}"
    rows = [
        Row("full copies of a cache left in the program", 0, _whole_copies(with_passes), "", off),
        Row(
            "arena with both reinplace passes / without",
            0.8,
            with_passes.arena / without.arena,
            "x",
            f"off: {without.arena:,}",
        ),
        Row("pipeline on a graph of 10,000 nodes", 20, seconds[10_000], "s", f"5,000: {seconds[5_000]:.2f} s"),
        Row("10,000 nodes / 5,000 nodes", 2.3, seconds[10_000] / seconds[5_000], "x"),
    ]
    report(rows, given.json)


def _decoder(off: bool):
    """The program of the decoder's largest bucket."""
    made = recipe(LAYERS, "npu", (16,))
    names = ("disable_reinplace_input_mutated_ops_pass", "disable_reinplace_inplaceable_ops_pass")
    parsed = job_of(parse_recipe(made | {"config": {"debug": {"aclgraph": dict.fromkeys(names, off)}}}))
    exported = export(load_model(parsed), parsed.entries[0])
    pipeline.apply(exported.module, parsed.config, Observer(Target("npu")))
    return build_program([exported], parsed, lambda *_: None).program


def _whole_copies(program) -> int:
    """Instructions that write as many bytes as a cache has, and only copy."""
    cache = (16, HEADS, POSITIONS, HIDDEN // HEADS)
    bucket = program.entry_points[0].buckets[0]
    found = 0
    for number in bucket.code:
        item = program.instructions[number]
        if program.ops[item.op].name == "aten::copy_":
            found += program.layouts[bucket.tensors[item.args[0].index].layout].shape == cache
    return found


class _Chain(torch.nn.Module):
    """A long graph of all that the passes look at: views, in-place candidates, caches, concatenations."""

    def __init__(self, nodes: int):
        super().__init__()
        self.rounds = nodes // 10

    def forward(self, x: torch.Tensor, cache: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        for number in range(self.rounds):
            y = (x * 2).relu().view(8, 2).t().contiguous()
            z = torch.cat([x, y.view(4, 4)])[number % 4 : number % 4 + 4] + 1
            if number % 50 == 0:
                cache.index_copy_(0, index, z[:1])
            x = z.tanh()
        return x + cache.sum(0)


def _seconds(nodes: int) -> float:
    parsed = job_of(
        parse_recipe(
            {
                "name": "chain",
                "model": {"factory": "benchmarks.passes:_Chain", "kwargs": {"nodes": nodes}},
                "inputs": {
                    "x": {"shape": [4, 4], "dtype": "float32"},
                    "cache": {"shape": [4, 4], "dtype": "float32", "mutated": True},
                    "index": {"shape": [1], "dtype": "int64", "range": [0, 4]},
                },
            }
        )
    )
    exported = export(load_model(parsed), parsed.entries[0])
    count = len(exported.module.graph.nodes)
    if not 0.9 * nodes < count < 1.2 * nodes:
        raise RuntimeError(f"the graph has {count} nodes, not about {nodes}")
    start = time.perf_counter()
    pipeline.apply(exported.module, CompilerConfig(), Observer(Target("cpu")))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

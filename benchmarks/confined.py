"""What it costs a load to check the calls of a program before the first one is made.

Peers: the bounds of 30 ms for the sentence encoder's 15 buckets and 100 ms for a decoder of 24 layers and 16 buckets.
"""

import statistics
import time

from aotair_runtime.artifact.open import read_program
from aotair_runtime.artifact.ops import resolve
from aotair_runtime.confine.check import check_calls
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.schema import Program

from .common import Row, artifact, options, report

CHANGES = (
    "model.kwargs.layers=24",
    "entry_points.prefill.buckets={batch: [1, 2, 4, 8], seq: [16, 32, 64]}",
    "entry_points.decode.buckets={batch: [1, 2, 4, 8]}",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    rows = [
        _row("encoder, 15 buckets", read_program(artifact("minilm", given.rebuild)), 0.030, given.rounds),
        _row("decoder, 24 layers, 16 buckets", _decoder(), 0.100, given.rounds),
    ]
    report(rows, given.json)


def _decoder() -> Program:
    """Planned and not proved: no weight of it is read."""
    from aotair.builder import plan
    from aotair.recipe.read import read_recipe

    return plan(read_recipe("recipes/llama.yaml", CHANGES))


def _row(what: str, program: Program, bound: float, rounds: int) -> Row:
    ops = [resolve(op, Allowed(), what, host=True) for op in program.ops]
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        check_calls(program, ops, Allowed(), what)
        times.append(time.perf_counter() - start)
    count = sum(len(bucket.code) for entry in program.entry_points for bucket in entry.buckets)
    return Row(f"{what}: {count:,} calls", bound, statistics.median(times), "s", f"first {times[0]:.4f} s")


if __name__ == "__main__":
    main()

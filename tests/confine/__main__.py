"""`python -m confine ops` makes hostile calls of every op of the table, `python -m confine artifacts` loads mutants.

Both print how the cases ended and end with 1 where one did what none may: a crash, a write outside of what it may write
to, an exception that is none of ours, more time or memory than an honest load takes.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from aotair_runtime.artifact import ops as _defined  # noqa: F401  # air's ops, which the table lists
from aotair_runtime.confine import op_table

from . import fuzz, loads, seeds
from .supervised import Findings, Work, supervise

# What torch_npu has, and what stands for it, is called on a simulated device alone.
ELSEWHERE = ("npu::", "air::fused")


def ops(cases: int, seed: str, only: Sequence[str] = ()) -> tuple[Findings, list[str]]:
    """The cases are spread over the ops: each gets as many, one after the other. Gives what came of them, and the ops
    of which no case ran to its end: of these nothing was tried but the checks."""
    names = [name for name in only or op_table.names() if not name.startswith(ELSEWHERE)]
    found = seeds.recorded()
    for call in seeds.BY_HAND:
        found.setdefault(call.name, []).append(call)
    each = -(-cases // len(names))

    def make() -> Work:
        torch.set_num_threads(1)
        runner = fuzz.Runner()

        def work(case: int) -> str:
            op = op_named(names[case // each])
            calls = seeds.seeds_of(op, found) or [seeds.from_schema(op, random.Random(case))]
            rng = random.Random(f"{seed}{op.name()}{case % each}")
            return f"{runner.case(op, rng.choice(calls), rng)} {op.name()}"

        return work

    findings = supervise(make, 0, each * len(names))
    ran = {name for end, _, name in map(_parted, findings.ends) if end == "ran"}
    findings.ends = sum((Counter({_parted(key)[0]: n}) for key, n in findings.ends.items()), Counter())
    findings.faults = [(case, f"{names[min(case // each, len(names) - 1)]}: {what}") for case, what in findings.faults]
    return findings, [name for name in names if op_named(name).name() not in ran]


def _parted(key: str) -> tuple[str, str, str]:
    return key.rpartition(" ")


def artifacts(cases: int, seed: str) -> Findings:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        # In a process of its own: what it leaves running must not be forked.
        subprocess.run([sys.executable, "-m", "confine", "build", "--folder", folder], check=True)
        return supervise(lambda: loads.mutants(Path(folder), Path(scratch), seed), 0, cases)


def op_named(name: str) -> torch._ops.OpOverload:
    """torch's op `namespace::name.overload`."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m confine", description=__doc__)
    parser.add_argument("what", choices=("ops", "artifacts", "build"))
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--op", action="append", default=[], help="with `ops`: this op alone, as aten::add.out")
    parser.add_argument("--folder", type=Path, help="where `build` puts the artifacts that mutants begin with")
    given = parser.parse_args()
    if given.what == "build":
        loads.build(given.folder)
        return 0
    warnings.simplefilter("ignore")
    began = time.monotonic()
    of_ops = given.what == "ops"
    found, idle = ops(given.cases, given.seed, given.op) if of_ops else (artifacts(given.cases, given.seed), [])
    ends = ", ".join(f"{count:,} {end}" for end, count in found.ends.most_common())
    print(f"{given.cases:,} cases in {time.monotonic() - began:.0f} s: {ends}; {len(found.faults)} faults")
    for case, what in found.faults:
        print(f"case {case}: {what}")
    if idle:
        print(f"no case ran of {len(idle)} ops: {', '.join(idle)}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())

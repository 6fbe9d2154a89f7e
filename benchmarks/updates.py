"""What it costs the host to replace the lengths of 24 attention layers at a replay, with device work suppressed.

Peer: every node's arguments put together and updated at each replay, as TorchAir does, in the same process.
"""

import json
import subprocess
import sys

from .common import BUILD, Row, options, report
from .device import built, simulated
from .updates_model import recipe


def main() -> None:
    given = options(__doc__).parse_args()
    environment = simulated()
    path = built(recipe(), BUILD / "updates.npu.aotair", given.rebuild)
    command = [sys.executable, "-m", "benchmarks.updates_node", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    report(rows(json.loads(done.stdout.splitlines()[-1])), given.json)


def rows(found: dict) -> list[Row]:
    """The time of the kernels' own calls, which no runtime can save, is left out where it says so."""
    nodes, op, naive = found["nodes"], found["op"], found["naive"]
    beyond = found["changed"] - op
    return [
        Row("a call with the lengths of the last one", 20, found["unchanged"], "us", f"naive {naive:.0f}"),
        Row(f"a call with new lengths, {nodes} nodes, beyond the kernels' own", 60 + 4 * nodes, beyond, "us",
            f"naive {naive - op:.0f}"),
        Row("the same, with the kernels' own calls", naive, found["changed"], "us", f"naive {naive:.0f}"),
        Row("for each node, beyond the kernel's own call", 4, (beyond - found["unchanged"]) / nodes, "us",
            f"the kernel's own {op / nodes:.1f}"),
        Row("of the call, without any replay", 20, found["entry"], "us"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()

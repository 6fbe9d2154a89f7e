"""From `import torch` to the first answer in a fresh process, and the memory that it holds after all 15 shapes.

Peer: AOTInductor packages of the same model for the same shapes, loaded in fresh processes that take turns with ours.
"""

import statistics
import warnings

from aotair_runtime.artifact.open import open_artifact

from .aoti import packages
from .common import Row, artifact, fresh, options, report
from .startup_node import BATCHES

_MB = 1e6


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--processes", type=int, default=7, help="fresh processes of each kind")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = artifact("minilm", given.rebuild)
    peers = packages(given.rebuild)
    ours, theirs = [], []
    for turn in range(given.processes + 1):
        pair = [fresh("benchmarks.startup_node", *what) for what in (("aotair", path), ("aoti", *peers))]
        if turn:  # the first writes byte code
            ours.append(pair[0])
            theirs.append(pair[1])
    print("\nAll buckets are captured before the first answer; the bound of the memory is weights + arena + 60 MB.")
    print(
        f"The peer: {len(BATCHES)} AOTInductor packages, batch {', '.join(map(str, BATCHES))}, freezing, seq dynamic.\n"
    )
    report(_rows(path, ours, theirs), given.json, aotair=ours, aoti=theirs)


def _rows(path, ours: list[dict], theirs: list[dict]) -> list[Row]:
    first, peer_first = _median(ours, "first"), _median(theirs, "first")
    three, peer_three = _median(ours, "three"), _median(theirs, "three")
    resident, peer_resident = _median(ours, "resident") / _MB, _median(theirs, "resident") / _MB
    opened = open_artifact(path)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in opened.constants)
    allowed = (weights + opened.program.arena) / _MB + 60
    heavy = sorted({name for run in ours for name in run["heavy"]})
    return [
        Row("from import torch to the first answer", 0.5, first, "s", f"AOTInductor {peer_first:.3f} s"),
        # Each package of the peer answers once, at its smallest shape; so do we.
        Row(
            "to an answer at each batch size / AOTInductor",
            0.2,
            three / peer_three,
            "x",
            f"AOTInductor {peer_three:.3f} s",
        ),
        Row("resident beyond import torch", allowed, resident, "MB", f"AOTInductor {peer_resident:.0f} MB"),
        Row("heavy modules imported: " + (", ".join(heavy) or "none"), 0, len(heavy)),
    ]


def _median(runs: list[dict], key: str) -> float:
    return statistics.median(run[key] for run in runs)


if __name__ == "__main__":
    main()

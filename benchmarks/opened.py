"""What it costs to open an artifact's weights: digests of all of them, of samples or of none, mapped or copied.

Peers: SHA-256 of the weights file by one core, and safetensors' own mapping of it.
"""

import hashlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import safetensors

from aotair_runtime.artifact.folder import Folder
from aotair_runtime.artifact.open import read_program, with_weights
from aotair_runtime.format.schema import WEIGHTS_FILE

from .common import Row, artifact, options, report

WAYS = {
    "full": {},
    "sampled": {"verify": "sampled"},
    "length": {"verify": "length"},
    "full, copied": {"private": True},
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, help="by default the sentence encoder")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    path = given.artifact or artifact("minilm", given.rebuild)
    file = path / WEIGHTS_FILE
    size = file.stat().st_size
    program = read_program(path)
    calls: dict[str, Callable[[], object]] = {"digest": lambda: _digest(file), "mapped": lambda: _mapped(file)}
    calls |= {way: lambda chosen=chosen: with_weights(Folder(path), program, **chosen) for way, chosen in WAYS.items()}
    times = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(found) for name, found in times.items()}
    peers = dict.fromkeys(WAYS, ("digest", f"one core's SHA-256 {median['digest']:.3f} s"))
    peers["length"] = ("mapped", f"safetensors' mapping {median['mapped']:.4f} s")
    rows = []
    for way, (peer, text) in peers.items():
        what = f"{way}: {size / median[way] / 1e9:.2f} GB/s"
        rows.append(Row(what, 1.5 * median[peer], median[way], "s", text))
    print(f"\n{path}: {size:,} bytes of weights, from the page cache")
    report(rows, given.json)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        state = hashlib.sha256()
        while block := stream.read(1 << 20):
            state.update(block)
        return state.hexdigest()


def _mapped(file: Path) -> list[object]:
    with safetensors.safe_open(str(file), framework="pt") as handle:
        return [handle.get_tensor(name) for name in handle.keys()]  # noqa: SIM118


if __name__ == "__main__":
    main()

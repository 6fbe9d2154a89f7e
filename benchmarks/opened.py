"""What it costs to open an artifact: its weights compared with their digests in full, by samples or not, mapped or copied.

Peers: one pass of reads over the weights file, and safetensors' own mapping of it.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import safetensors

from aotair_runtime.artifact.open import opened, with_weights
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
    calls: dict[str, Callable[[], object]] = {"read": lambda: _read(file), "safetensors": lambda: _mapped(file)}
    calls |= {way: lambda chosen=chosen: with_weights(*opened(path), **chosen) for way, chosen in WAYS.items()}
    times = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(found) for name, found in times.items()}
    reads = f"one pass of reads {size / median['read'] / 1e9:.2f} GB/s"
    rows = [Row(f"{way}: seconds", 10 * median["read"], median[way], "s", reads) for way in WAYS]
    rows += [Row(f"{way}: GB/s", 0, size / median[way] / 1e9, "GB/s", at_least=True) for way in WAYS]
    mapped = f"safetensors' mapping {median['safetensors'] * 1e3:.1f} ms"
    rows.append(Row("length, and safetensors' mapping beside it", 30, median["length"] * 1e3, "ms", mapped))
    print(f"\n{path}: {size:,} bytes of weights, from the page cache")
    report(rows, given.json)


def _read(file: Path) -> None:
    with file.open("rb", buffering=0) as stream:
        buffer = bytearray(1 << 20)
        while stream.readinto(buffer):
            pass


def _mapped(file: Path) -> list[object]:
    with safetensors.safe_open(str(file), framework="pt") as handle:
        return [handle.get_tensor(name) for name in handle.keys()]  # noqa: SIM118


if __name__ == "__main__":
    main()

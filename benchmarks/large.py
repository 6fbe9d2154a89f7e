"""How long a load of large weights takes beside one pass of reads over their file, both from the page cache.

A load takes the digest of the file, by parts that cores share, and maps it: nothing is copied. `sampled` takes the
digest of some parts, for who trusts the disk that checked the whole before.
"""

import resource
import statistics
import time
from pathlib import Path

import torch

import aotair
from aotair_runtime.format.schema import WEIGHTS_FILE
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report

WIDTH = 1024


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--gigabytes", type=int, default=4, help="of weights  [4]")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    path = _artifact(given.gigabytes, given.rebuild)
    file, found = path / WEIGHTS_FILE, {"read": [], "load": [], "sampled": []}
    size = file.stat().st_size
    _read(file)
    for _ in range(given.rounds):
        start = time.perf_counter()
        _read(file)
        found["read"].append(time.perf_counter() - start)
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with aotair.load(path):
            found["load"].append(time.perf_counter() - start)
        start = time.perf_counter()
        with aotair.load(path, verify_weights="sampled"):
            found["sampled"].append(time.perf_counter() - start)
        copied = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    speed = {what: size / statistics.median(times) / 1e9 for what, times in found.items()}
    print(table(["what", "GB/s"], [[what, f"{one:.2f}"] for what, one in speed.items()]) + "\n")
    rows = [
        Row(f"load of {size / 1e9:.1f} GB: speed beside one pass of reads", 0.9, speed["load"] / speed["read"], "x",
            f"{torch.get_num_threads()} cores", at_least=True),
        Row("the same with verify_weights=sampled", 0.9, speed["sampled"] / speed["read"], "x", at_least=True),
        Row("its growth of resident memory in the last round", 0.01, copied / size, "of the file"),
    ]  # fmt: skip
    report(rows, given.json)


def _artifact(gigabytes: int, rebuild: bool) -> Path:
    out = BUILD / f"large_{gigabytes}.aotair"
    if rebuild or not out.exists():
        print(f"building {out} …", flush=True)
        rows = gigabytes * 10**9 // (4 * WIDTH)
        model = torch.nn.Embedding(rows, WIDTH, _weight=torch.zeros(rows, WIDTH))
        ids = {"shape": [4], "dtype": "int64", "range": [0, rows]}
        aotair.build(model=model, out=out, inputs={"input": ids}, verify={"atol": 0.0, "rtol": 0.0})
    return out


def _read(file: Path) -> None:
    buffer = bytearray(1 << 20)
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


if __name__ == "__main__":
    main()

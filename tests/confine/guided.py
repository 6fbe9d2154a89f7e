"""`python -m confine.guided`: hostile programs by a coverage-guided fuzzer, atheris, which has to be installed. Those
that reach lines of the runtime that none reached before are changed further.

A case is a byte, which says whose artifact it is, and a program; the fuzzer's mutations are those of `mutants`. It ends
with 0 where no program did what it may not, and otherwise leaves the case in a file, whose name it prints.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris
import msgpack

with atheris.instrument_imports(include=["aotair_runtime"]):
    from . import loads
    from .mutants import mutant

LIMITS = ["-timeout=20", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confine.guided", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--corpus", type=Path, help="the folder of what earlier runs have found, and this one finds")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "confine", "build", "--folder", str(folder)], check=True)
    target = loads.Target(folder, folder / "scratch")
    corpus = given.corpus or folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(target.names):
        (corpus / name).write_bytes(bytes([number]) + target.programs[name])

    def attempt(data: bytes) -> None:
        if data:
            target.attempt(target.names[data[0] % len(target.names)], data[1:])

    atheris.Setup([sys.argv[0], str(corpus), f"-runs={given.cases}", *LIMITS], attempt, custom_mutator=changed)
    atheris.Fuzz()


def changed(data: bytes, most: int, seed: int) -> bytes:
    """A case with some of its program changed, of at most so many bytes."""
    try:
        return (data[:1] + msgpack.packb(mutant(data[1:], random.Random(seed))))[:most]
    except Exception:  # no program, or one that cannot be written: the fuzzer changes its bytes
        return bytes(atheris.Mutate(data, most))


if __name__ == "__main__":
    main()

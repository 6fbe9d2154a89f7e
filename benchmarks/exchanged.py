"""Loads while another process replaces the artifact under them: each has the old or the new one, whole, and no error.

In four ways: `build`, as a build replaces it; `two steps`, as it does where two folders cannot change places in one
step; `swap`, two artifacts that change places as fast as the system lets them; `files`, single files of both that
change places, of which no load may come to more than a refusal. Every tenth load reads the artifact at the path again
(`load_weights`), and may find the other one.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from aotair.disk import place
from aotair.disk.exchange import exchange
from aotair_runtime.errors import AotairError

from .common import BUILD, Row, options, report

WAYS = ("build", "two steps", "swap", "files")
VALUES = {"first": 1.0, "second": 2.0}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loads", type=int, default=20_000, help="in all ways together")
    parser.add_argument("--folder", type=Path, default=BUILD / "exchanged")
    parser.add_argument("--replace", choices=WAYS, help="the other process: replace until it is ended")
    given = parser.parse_args()
    prepare(given.folder, given.rebuild)
    if given.replace:
        replace(given.folder, given.replace)
        return
    found = {way: loads(given.folder, way, given.loads // len(WAYS)) for way in WAYS}
    rows = []
    for way, count in found.items():
        of = f"{way}: of {count['loads']} loads over {count['replaced']} replacements,"
        rows.append(Row(f"{of} mixed", 0, count["mixed"]))
        rows.append(Row(f"{of} errors of Python's or torch's own", 0, count["raw"]))
        if way != "files":
            rows.append(Row(f"{of} refused", 0, count["refused"]))
    report(rows, given.json, **{way.replace(" ", "_"): dict(count) for way, count in found.items()})


def prepare(folder: Path, rebuild: bool = False) -> None:
    """Two artifacts of one program, whose weights answer 1 and 2."""
    import aotair

    for name, value in VALUES.items():
        if rebuild or not (folder / name).exists():
            model = torch.nn.Linear(4, 2)
            torch.nn.init.constant_(model.weight, value / 4)
            torch.nn.init.constant_(model.bias, 0.0)
            aotair.build(model=model, name=name, out=folder / name, inputs={"input": torch.ones(1, 4)})


def loads(folder: Path, way: str, number: int) -> Counter:
    """Load so many times, meanwhile another process replaces what is loaded."""
    path, count = folder / "served", Counter(loads=number)
    (folder / "replaced").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "first", path)
    command = [sys.executable, "-m", "benchmarks.exchanged", "--folder", str(folder), "--replace", way]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "begun\n"
        for turn in range(number):
            _load(path, turn % 10 == 9, count)
    finally:
        other.terminate()
        with contextlib.suppress(OSError, ValueError):
            count["replaced"] = int((folder / "replaced").read_text())
        other.wait()
        other.stdout.close()
    return count


def _load(path: Path, reload: bool, count: Counter) -> None:
    import aotair

    try:
        with aotair.load(path, enable_output_clone=True) as model:
            answer = float(model(torch.ones(1, 4))[0, 0])
            count["mixed"] += answer != VALUES[model.program.name]
            count[model.program.name] += 1
            if reload:
                model.load_weights(path)
                count["mixed"] += float(model(torch.ones(1, 4))[0, 0]) not in VALUES.values()
    except AotairError as error:
        count["refused"] += 1
        count[f"refused: {str(error)[-160:]}"] += 1
    except Exception as error:
        count["raw"] += 1
        count[f"raw: {error!r}"[:200]] += 1


def replace(folder: Path, way: str) -> None:
    """Replace what is at the path, until this process is ended."""
    path, spare = folder / "served", folder / "spare"
    if way == "two steps":
        place.exchange = lambda *_: False
    shutil.rmtree(spare, ignore_errors=True)
    shutil.copytree(folder / "second", spare)
    print("begun", flush=True)
    said = time.monotonic()
    for number in itertools.count(1):
        if way in ("build", "two steps"):
            with place.new_folder(path) as aside:
                shutil.copytree(folder / ("first" if number % 2 else "second"), aside, dirs_exist_ok=True)
        elif way == "swap":
            exchange(path, spare)
        else:
            name = ("program.msgpack", "weights.safetensors", "golden.safetensors")[number % 3]
            exchange(path / name, spare / name)
        if time.monotonic() - said > 0.2:
            said = time.monotonic()
            (folder / "replaced.new").write_text(str(number))
            os.replace(folder / "replaced.new", folder / "replaced")


if __name__ == "__main__":
    main()

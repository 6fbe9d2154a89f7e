"""The runtime's tests with each torch that is supported, on each Python: an environment of its own for each pair.

Interpreters are those on the PATH (`python3.10` and so on); a pair without one is said to be missing, and counts as not
passed. An environment takes some GB and is removed afterwards. Prints a table, and ends with 1 unless all passed.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TORCH = ("2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0")
PYTHON = ("3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Pair:
    """A Python and a torch, and the environment of both."""

    python: str
    torch: str
    folder: Path

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/matrix.py", description=__doc__)
    parser.add_argument("--torch", nargs="+", default=TORCH)
    parser.add_argument("--python", nargs="+", default=PYTHON)
    parser.add_argument("--pair", nargs="+", default=[], metavar="PYTHON:TORCH", help="these alone, as 3.10:2.9.1")
    parser.add_argument("--tests", nargs="+", default=["tests/runtime"])
    parser.add_argument("--keep", action="store_true", help="keep the environments, for the next time")
    given = parser.parse_args()
    pairs = [tuple(pair.split(":")) for pair in given.pair] or [*itertools.product(given.python, given.torch)]
    rows = [("Python", "torch", "result", "minutes")]
    for python, torch in pairs:
        pair, began = Pair(python, torch, ROOT / "build" / "matrix" / f"{python}-{torch}"), time.monotonic()
        result = outcome(pair, given.tests)
        if not given.keep:
            shutil.rmtree(pair.folder, ignore_errors=True)
        rows.append((python, torch, result, f"{(time.monotonic() - began) / 60:.1f}"))
        print(f"Python {python}, torch {torch}: {result}", flush=True)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0 if all(" passed" in row[2] and "failed" not in row[2] for row in rows[1:]) else 1


def outcome(pair: Pair, tests: list[str]) -> str:
    """How the tests ended, in the test runner's words, or why they could not be run."""
    if why := made(pair):
        return why
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}", "HF_HUB_OFFLINE": "1"}
    command = [pair.interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (pair.folder.parent / f"{pair.folder.name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    found = re.findall(r"^(?=.*(?:passed|failed|error)).* in [0-9.]+s.*$", done.stdout, re.MULTILINE)
    return found[-1].strip("= ") if found else f"no result: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


def made(pair: Pair) -> str:
    """Why there can be no environment, or nothing, once it is there."""
    if pair.interpreter.exists():
        return ""
    python = shutil.which(f"python{pair.python}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        return f"there is no python{pair.python} on the PATH"
    subprocess.run([python, "-m", "venv", "--clear", pair.folder], check=True)
    install = [pair.interpreter, "-m", "pip", "install", "--quiet", f"torch=={pair.torch}", "-e", f"{ROOT}[test]"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(pair.folder)
        return f"it does not install: {done.stderr.strip().splitlines()[-1][:200]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())

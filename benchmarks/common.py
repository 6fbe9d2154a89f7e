"""What the benchmarks share: rows with a bound, the artifact that is measured, and the command line."""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aotair_runtime.format.text import table

BUILD = Path("build/bench")


@dataclass(frozen=True)
class Row:
    """One measured value beside its bound; both in `unit`. `peer`: what the peer came to, where there is one."""

    what: str
    bound: float
    value: float
    unit: str = ""
    peer: str = ""
    at_least: bool = False  # whether the value may not be below the bound; else it may not be above

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("--rebuild", action="store_true", help="build the artifacts again")
    return parser


def report(rows: Sequence[Row], json_file: str | None, **more: object) -> None:
    """Print the rows and, where asked, write them with `more` as JSON."""
    head = ["what", "bound", "measured", "unit", "verdict", "peer"]
    print(table(head, [_cells(row) for row in rows]), flush=True)
    if json_file:
        found = [{**asdict(row), "met": row.met} for row in rows]
        Path(json_file).write_text(json.dumps({"rows": found, **more}, indent=1) + "\n", encoding="utf-8")


def artifact(recipe: str, rebuild: bool) -> Path:
    """The artifact of `recipes/RECIPE.yaml`, built once."""
    out = BUILD / f"{recipe}.aotair"
    if rebuild or not out.exists():
        import aotair

        print(f"building {out} …", flush=True)
        aotair.build(f"recipes/{recipe}.yaml", out)
    return out


def fresh(module: str, *arguments: object) -> dict:
    """What `python -m MODULE ARGUMENTS` printed last, as JSON, in a process of its own."""
    return _last_line([sys.executable, "-m", module, *map(str, arguments)])


def fresh_call(module: str, function: str, *arguments: object) -> dict:
    """What a function of a module gives, in a process of its own."""
    code = f"import json, {module} as it; print(json.dumps(it.{function}(*{arguments!r})))"
    return _last_line([sys.executable, "-c", code])


def _last_line(command: Sequence[str]) -> dict:
    # Byte code is there, as it is where a package was installed, whatever this shell says of it.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str((BUILD / "bytecode").absolute())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def host_microseconds(call: Callable[[], object], synchronize: Callable[[], object], calls: int) -> float:
    """The median time of one call, with the device kept from piling up work."""
    times = []
    for number in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if number % 50 == 0:
            synchronize()
    return statistics.median(times) * 1e6


def _cells(row: Row) -> list[str]:
    bound = f"{'>=' if row.at_least else '<='} {_text(row.bound)}"
    return [row.what, bound, _text(row.value), row.unit, "MET" if row.met else "MISSED", row.peer]


def _text(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.1e}" if abs(value) < 1e-2 else f"{value:,.3f}" if abs(value) < 1e3 else f"{value:,.0f}"

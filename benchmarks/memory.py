"""Memory as promised, and as taken: arena, pool and plans on the CPU, the simulated NPU and, where there is one, a GPU.

The peer in the last column is the original model: what its own run of the largest bucket allocates at most, beside
weights and caches.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from aotair.builder import plan
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.sizes import describe
from aotair_runtime.format.text import table

from .common import BUILD, Row, artifact, options, report
from .decoder import recipe as decoder
from .device import ROOT, built, simulated
from .language import MODELS
from .language import recipe as language

LAYERS, BATCHES = 24, tuple(range(1, 17))


def main() -> None:
    given = options(__doc__).parse_args()
    devices = {"cpu": dict(os.environ), "npu": simulated()} | (
        {"cuda": dict(os.environ)} if torch.cuda.is_available() else {}
    )
    found = {device: _measure(device, environment, given.rebuild) for device, environment in devices.items()}
    rows = [row for device, measured in found.items() for row in _rows(device, *measured)]
    plans = list(_plans(given.rebuild))
    print(
        table(
            ["recipe", "bucket", "arena bytes", "height / bound"],
            [[n, b, f"{h:,}", f"{h / low:.4f}"] for n, b, h, low in plans],
        )
    )
    report([*rows, *_plan_rows([height / bound for _, _, height, bound in plans])], given.json, runs=found)
    if "cuda" not in found:
        print("There is no GPU here: the rows of cuda are missing.")


def _measure(device: str, environment: dict, rebuild: bool) -> tuple[dict, dict]:
    """What a process finds that calls all buckets of the decoder, and one that calls the largest alone."""
    name = f"decoder{LAYERS}x{len(BATCHES)}"
    path = built(decoder(LAYERS, device, BATCHES), BUILD / f"{name}.{device}.aotair", rebuild)
    return tuple(_node(environment, what, device, path) for what in ("memory_all", "memory_largest"))


def _node(environment: dict, what: str, device: str, path: Path) -> dict:
    command = [sys.executable, "-m", "benchmarks.device_node", what, device, str(LAYERS), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  {what} on {device}: {found}", flush=True)
    return found


def _rows(device: str, every: dict, largest: dict) -> Iterator[Row]:
    arena = every["arena"]
    yield Row(f"{device}: arena bytes allocated / promised", 1, every["allocated"] / arena, "x", f"{arena:,} B")
    yield Row(f"{device}: arena bytes addressed / promised", 1, every["addressed"] / arena, "x")
    yield Row(f"{device}: pool bytes, 16 buckets / the largest alone", 1, every["pool"] / largest["pool"], "x")
    if device != "cpu":
        eager = f"activations, eager, batch 16: {every['eager']:,} B"
        yield Row(f"{device}: most reserved while loading / promised", 1, every["most"] / every["peak"], "x", eager)


def _plans(rebuild: bool) -> Iterator[tuple[str, str, int, int]]:
    """Recipe, bucket, height and lower bound of each plan."""
    programs = {"minilm": read_program(artifact("minilm", rebuild)), "decoder": plan(decoder(LAYERS, "npu"))}
    programs |= {name: plan(language(name)) for name in MODELS}
    programs |= {path.stem: plan(path) for path in sorted((ROOT / "recipes").glob("*.yaml")) if path.stem != "minilm"}
    for name, program in programs.items():
        for entry in program.entry_points:
            for bucket in entry.buckets:
                yield name, describe(entry, bucket.sizes), bucket.height, bucket.lower_bound


def _plan_rows(ratios: list[float]) -> Iterator[Row]:
    exact = sum(ratio == 1 for ratio in ratios) / len(ratios)
    yield Row(f"plans at the lower bound, of {len(ratios)} buckets", 0.95, exact, "share", at_least=True)
    yield Row("plans, highest / lower bound", 1.01, max(ratios), "x")


if __name__ == "__main__":
    main()

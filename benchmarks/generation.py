"""Language models from transformers: the same tokens, how soon the first one comes, and how many a second.

`--only tokens | start | speed`. Tokens and logits are compared with transformers on the CPU and the simulated NPU. The
other two have 24 layers, 8 decode and 4 prefill buckets; the peers are transformers' own eager code and torch.compile
(mode "reduce-overhead"), which compiles nothing but the one shape it is asked for.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import aotair
from aotair.recipe.read import read_recipe
from aotair.recipe.recipe import Recipe

from .common import BUILD, Row, options, report
from .device import ROOT, simulated

MODELS = ("llama", "qwen3", "deepseek_v3")
LAYERS = 24
PARTS = ("tokens", "start", "speed")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes of each kind")
    given = parser.parse_args()
    parts = given.only or PARTS
    rows = [row for part in parts for row in _PART[part](given.rebuild, given.processes)]
    report(rows, given.json)


def large_recipe() -> Recipe:
    """Llama with 24 layers, each decode batch from 1 to 8."""
    changes = (f"model.kwargs.layers={LAYERS}", "entry_points.decode.buckets.batch=[1, 2, 3, 4, 5, 6, 7, 8]")
    return read_recipe(ROOT / "recipes" / "llama.yaml", changes)


def _tokens(rebuild: bool, _: int) -> Iterator[Row]:
    for device, environment in (("cpu", dict(os.environ)), ("npu", simulated())):
        for name in MODELS:
            wide = _built(name, rebuild, f"target.device={device}")
            half = _built(name, rebuild, f"target.device={device}", "model.dtype=float16")
            found = _node(environment, "tokens", device, name, wide, half)
            yield Row(f"{name}, {device}: wrong tokens of 512", 0, found["wrong"], "")
            yield Row(f"{name}, {device}: logits, float32, largest error", 1e-4, found["float32"], "")
            yield Row(f"{name}, {device}: logits, float16, largest error", 2e-2, found["float16"], "")


def _start(rebuild: bool, processes: int) -> Iterator[Row]:
    path = _large(rebuild)
    ours = statistics.median(_node(dict(os.environ), "start", path)["seconds"] for _ in range(processes))
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ) | {"TORCHINDUCTOR_CACHE_DIR": cache}
        cold = _node(environment, "compile_start")["seconds"]
        warm = statistics.median(_node(environment, "compile_start")["seconds"] for _ in range(processes))
    what = "artifact on disk to first token, 24 layers, 12 buckets captured"
    yield Row(f"{what} / torch.compile, cold", 0.1, ours / cold, "x", f"{ours:.2f} s, {cold:.1f} s")
    yield Row(f"{what} / torch.compile, warm cache", 0.5, ours / warm, "x", f"{ours:.2f} s, {warm:.1f} s")


def _speed(rebuild: bool, processes: int) -> Iterator[Row]:
    path = _large(rebuild)
    for batch in (1, 8):
        found = [_node(dict(os.environ), "speed", path, batch) for _ in range(processes)]
        ours, eager, own, compiled = (
            statistics.median(one[kind] for one in found) for kind in ("aotair", "eager", "generate", "compile")
        )
        text = f"{ours:,.0f}, {eager:,.0f} tokens/s; generate() {own:,.0f}"
        yield Row(f"decode, batch {batch}, tokens/s / eager", 1.5, ours / eager, "x", text, at_least=True)
        text = f"{ours:,.0f}, {compiled:,.0f} tokens/s"
        yield Row(f"decode, batch {batch}, tokens/s / torch.compile", 1.0, ours / compiled, "x", text, at_least=True)


_PART = {"tokens": _tokens, "start": _start, "speed": _speed}


def _built(name: str, rebuild: bool, *changes: str) -> Path:
    path = BUILD / f"{name}.{'.'.join(change.rpartition('=')[2] for change in changes)}.aotair"
    if rebuild or not path.exists():
        aotair.build(read_recipe(ROOT / "recipes" / f"{name}.yaml", changes), path)
    return path


def _large(rebuild: bool) -> Path:
    path = BUILD / f"llama{LAYERS}.aotair"
    if rebuild or not path.exists():
        aotair.build(large_recipe(), path)
    return path


def _node(environment: dict, what: str, *arguments: object) -> dict:
    command: Sequence[str] = [sys.executable, "-m", "benchmarks.generation_node", what, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment | {"HF_HUB_OFFLINE": "1"}, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  {what} {' '.join(str(a) for a in arguments)}: {found}", flush=True)
    return found


if __name__ == "__main__":
    main()

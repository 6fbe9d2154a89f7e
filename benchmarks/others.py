"""Builds, proves and replays models that were not chosen for this project (`others.yaml`): of timm, torchvision,
diffusers, transformers and torch.nn. Each is right beside the original on fresh inputs, or refused with what to do.

The libraries are the peers' own: `pip install 'aotair[others]'`.
"""

import argparse
import json
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml

import aotair
from aotair.model.load import load_model
from aotair.model.reference import Original
from aotair.model.samples import random_inputs
from aotair.recipe.job import Job, job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.text import table
from aotair_runtime.weights.compared import compare

_FRESH = 1_000_000  # a stream of random numbers that the build does not draw its own inputs from


@dataclass(frozen=True)
class Result:
    """`outcome`: right, wrong, refused, traceback, or not made (its library refuses the arguments). `error`: the
    largest against the original; `says` what came."""

    name: str
    outcome: str
    seconds: float
    error: float = 0.0
    says: str = ""


CASES: dict[str, dict] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def recipe(name: str) -> dict:
    case = CASES[name]
    return {
        "name": "".join(c if c.isalnum() else "_" for c in name),
        "model": {"factory": f"benchmarks.others_models:{case['factory']}", "kwargs": case["kwargs"]},
        "inputs": case["inputs"],
        "buckets": case["buckets"],
    }


def tried(name: str, folder: Path) -> Result:
    """Build one model, load it, and compare every bucket with the original on fresh inputs."""
    start, parsed = time.perf_counter(), parse_recipe(recipe(name))
    try:
        path = aotair.build(parsed, folder / f"{parsed.name}.aotair")
        worst, right = _compared(job_of(parsed), path)
    except aotair.AotairError as error:
        outcome = (
            "not made" if "model.factory" in error.what else "refused"
        )  # its library does not take these arguments
        return Result(name, outcome, time.perf_counter() - start, says=str(error))
    except Exception:
        return Result(name, "traceback", time.perf_counter() - start, says=traceback.format_exc()[-1500:])
    return Result(name, "right" if right else "wrong", time.perf_counter() - start, worst)


def _compared(job: Job, path: Path) -> tuple[float, bool]:
    (entry,) = job.entries
    original, worst, right = Original(load_model(job), entry), 0.0, True
    with aotair.load(path, enable_output_clone=True) as model:
        for number, sizes in enumerate(entry.bucket_sizes()):
            inputs = random_inputs(entry, dict(zip(entry.dims(), sizes)), _FRESH + number)
            got = model.forward.flat([inputs[spec.name] for spec in model.forward.spec.inputs])
            for mine, theirs in zip(got, original(inputs), strict=True):
                error, within = compare(mine, theirs, 1e-4, 1e-3)
                worst, right = max(worst, error), right and within
    return worst, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="parts of the names of models  [all]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--part", default="1/1", help="which share of the models: 1/2, 2/2")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    names = [name for name in CASES if not given.only or any(word in name for word in given.only)][part - 1 :: parts]
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            results.append(tried(name, Path(folder)))
            first = results[-1].says.strip().splitlines()
            print(f"{name}: {results[-1].outcome}, {results[-1].seconds:.1f} s", *first[:4], sep="\n    ", flush=True)
    outcomes = {
        outcome: sum(r.outcome == outcome for r in results) for outcome in ("right", "refused", "wrong", "traceback")
    }
    print(f"\n{table(['models', *outcomes], [[str(len(results)), *map(str, outcomes.values())]])}")
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()

"""Networks of many kinds on the CPU beside what else runs them: milliseconds of a call, ours over the best.

Each runtime gets as many threads as we have, and takes turns with the others in blocks of calls (see `runtimes`). Times
are medians of blocks.
"""

import functools
import statistics

import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report
from .runtimes import RUNTIMES, Subject, medians

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Inputs = dict[str, dict[str, object]]


def _floats(name: str, *shape: int) -> Inputs:
    return {name: {"shape": list(shape), "dtype": "float32"}}


NETWORKS: dict[str, Inputs] = {
    "vit": _floats("pixel_values", 1, 3, 224, 224),
    "resnet": _floats("pixel_values", 1, 3, 224, 224),
    "convnext": _floats("pixel_values", 1, 3, 224, 224),
    "unet": {**_floats("sample", 1, 3, 64, 64), "timestep": {"shape": [1], "dtype": "int64", "range": [0, 1000]}},
    "lstm": _floats("x", 4, 32, 256),
    "whisper": _floats("input_features", 1, 80, 3000),
    "bge": {
        "input_ids": {"shape": [4, 64], "dtype": "int64", "range": [3, 30522]},
        "attention_mask": {"shape": [4, 64], "dtype": "int64", "range": [1, 2]},
    },
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dtype", choices=KINDS, default="float32")
    parser.add_argument("--threads", type=int, default=2, help="threads of a call  [2]")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each  [5]")
    parser.add_argument("--only", nargs="+", default=[*NETWORKS], choices=NETWORKS, help="networks to run")
    parser.add_argument("--peers", nargs="+", default=[*RUNTIMES], choices=RUNTIMES, help="what to compare with")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lines, rows = [], []
    for name in given.only:
        times, cosine = _measured(name, given)
        ours, best = times["aotair"], min(value for peer, value in times.items() if peer != "aotair")
        lines.append([name, *(f"{1e3 * value:.2f}" for value in times.values()), f"{ours / best:.2f}"])
        rows.append(Row(f"{name}: ours / best", 0.95, ours / best, "x"))
        rows.append(Row(f"{name}: cosine beside float32", 0.999, cosine, at_least=True))
    print(f"milliseconds, {given.dtype}, {given.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(table(["network", *given.peers, "aotair", "ours / best"], lines) + "\n")
    mean = statistics.geometric_mean(row.value for row in rows[::2])
    report([*rows, Row("in the mean", 0.95, mean, "x")], given.json)


def _measured(name: str, given) -> tuple[dict[str, float], float]:
    """Seconds of a call of each, and the cosine of our answer with that of float32."""
    job = job_of(parse_recipe(_recipe(name, "float32")))
    exact, inputs = load_model(job).eval(), random_inputs(job.entries[0], {}, 1)
    subject = Subject(
        exact, inputs, KINDS[given.dtype], given.threads, BUILD / "networks" / f"{name}-{given.dtype}.pt2"
    )
    served = aotair.load(_artifact(name, given.dtype, given.rebuild))
    with torch.inference_mode():
        calls = {peer: RUNTIMES[peer](subject) for peer in given.peers}
        calls["aotair"] = functools.partial(served, **subject.given)
        want, got = exact(**inputs).flatten(), calls["aotair"]().flatten().float()
        return medians(calls, given.blocks), float(torch.nn.functional.cosine_similarity(got, want, dim=0))


def _recipe(name: str, dtype: str) -> dict[str, object]:
    inputs = {
        key: {**value, "dtype": dtype} if value["dtype"] == "float32" else value
        for key, value in NETWORKS[name].items()
    }
    made = {"factory": f"benchmarks.network_models:{name}", "dtype": dtype}
    return {"name": f"{name}_{dtype}", "model": made, "inputs": inputs}


def _artifact(name: str, dtype: str, rebuild: bool):
    out = BUILD / "networks" / f"{name}_{dtype}.aotair"
    if rebuild or not out.exists():
        print(f"building {out} …", flush=True)
        aotair.build(_recipe(name, dtype), out)
    return out


if __name__ == "__main__":
    main()

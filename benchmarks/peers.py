"""The sentence encoder on the CPU beside what else runs it: milliseconds of a call at five shapes, ours over the best.

Each runtime gets a model of its own for each shape, which is what it likes best, as many threads as we have, and takes
turns with the others in blocks of calls (see `runtimes`). Times are medians of blocks.
"""

import functools
import statistics

import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe, read_recipe
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report
from .five_shapes import SHAPES, artifact, recipe
from .runtimes import INT8, RUNTIMES, Subject, medians

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "mixed": torch.bfloat16, "int8": torch.float32}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dtype", choices=KINDS, default="float32")
    parser.add_argument("--threads", type=int, default=2, help="threads of a call  [2]")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each  [9]")
    parser.add_argument("--only", nargs="+", choices=RUNTIMES, help="peers to compare with  [all]")
    given = parser.parse_args()
    runtimes = INT8 if given.dtype == "int8" else RUNTIMES
    peers = given.only or [*runtimes]
    if unknown := [name for name in peers if name not in runtimes]:
        parser.error(f"{', '.join(unknown)} is not measured in {given.dtype}")
    torch.set_num_threads(given.threads)
    served = aotair.load(artifact(given.dtype, given.rebuild))
    entry = job_of(parse_recipe(recipe(given.dtype))).entries[0]
    exact = load_model(job_of(read_recipe("recipes/minilm.yaml"))).float().eval()
    lines, ratios = [], []
    cosines: dict[str, list[float]] = {name: [] for name in (*peers, "aotair")}
    for batch, seq in SHAPES:
        inputs = random_inputs(entry, {"batch": batch, "seq": seq}, 1)
        inputs["attention_mask"][:, 0] = 1  # no sentence is empty
        with torch.inference_mode():
            kind = KINDS[given.dtype]
            place = BUILD / "peers" / f"{str(kind).removeprefix('torch.')}-{batch}x{seq}.pt2"
            subject = Subject(exact, inputs, kind, given.threads, place)
            calls = {name: runtimes[name](subject) for name in peers}
            calls["aotair"] = functools.partial(served, **inputs)
            want = exact(**inputs)
            for name, call in calls.items():
                cosines[name].append(float(_cosine(call(), want)))
            times = medians(calls, given.blocks)
        best = min(value for name, value in times.items() if name != "aotair")
        ratios.append(times["aotair"] / best)
        lines.append([f"{batch}, {seq}", *(f"{1e3 * value:.2f}" for value in times.values()), f"{ratios[-1]:.2f}"])
    print(f"milliseconds, {given.dtype}, {given.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(table(["batch, seq", *peers, "aotair", "ours / best"], lines) + "\n")
    rows = [Row(f"{batch}, {seq}: ours / best", 1.0, one, "x") for (batch, seq), one in zip(SHAPES, ratios)]
    rows.append(Row("in the mean", 0.9, statistics.geometric_mean(ratios), "x"))
    least = 0.99 if given.dtype == "int8" else 0.9998
    rows += [
        Row(f"{name}: least cosine beside float32", least, min(found), at_least=True) for name, found in cosines.items()
    ]
    report(rows, given.json)


def _cosine(one: object, other: torch.Tensor) -> torch.Tensor:
    found = one if isinstance(one, torch.Tensor) else next(iter(one))  # type: ignore[call-overload]  # a list of results
    return torch.nn.functional.cosine_similarity(found.float(), other, dim=-1).min()


if __name__ == "__main__":
    main()

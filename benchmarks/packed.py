"""Linear layers on the CPU whose weights are packed at load, and the same layers that read them as stored: packed by a
library of oneDNN where one is installed, and by torch's own.

Tables of one linear layer by its rows, over as many weights in turn as a model would have, so that caches hold none
of them, in float32, in bfloat16 and in four and eight bits: `Target.packs_product`, `packs_linear` and `packs_int4`,
`int8_rows.MOST_ROWS`, and on which processors `onednn.packs` is true, rest on these. The sentence encoder in float32
and bfloat16, beside eager PyTorch and torch.compile; and what packing adds to a load. What is compared takes turns in
blocks of calls; times are medians of blocks.
"""

import functools
import statistics
import time
from collections.abc import Callable

import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.ops.int4 import linear_int4
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe, read_recipe
from aotair_runtime.devices.int4 import Int4Weight
from aotair_runtime.devices.int8_rows import MOST_ROWS, in_floats
from aotair_runtime.devices.onednn import OnednnWeight, packs
from aotair_runtime.devices.onednn_product import LibraryWeight, takes
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report
from .five_shapes import SHAPES, artifact, recipe

ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
LAYERS = ((384, 384), (384, 1536), (1536, 384), (576, 1536), (768, 768), (768, 3072), (2048, 2048))  # in, out
TOGETHER = 32 << 20  # bytes of weights that a block reads
_BARE = "oneDNN's own call"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each  [15]")
    parser.add_argument("--threads", type=int, default=2, help="threads of a call  [2]")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--only", choices=["load"], help="what packing adds to a load, alone")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.only == "load":
        report(_loads(given.rebuild), given.json)
        return
    with torch.no_grad():
        floats = _table("{way} / stored, in float32", functools.partial(_linear, torch.float32), given.blocks, 1024)
        halves = functools.partial(_linear, torch.bfloat16)
        layers = _table("{way} / stored, in bfloat16", halves, given.blocks, 256)
        four_bits = _table("weights of {way} / stored, in bfloat16", _int4, given.blocks, 8)["four bits"]
        _table("weights of four bits, {way} / floats made of them in each call", _int4_or_floats, given.blocks, 32)
        _table("weights of int8, {way} / floats made of them in each call", _int8_or_floats, given.blocks, MOST_ROWS)
        plain, _ = _encoder("float32", given.blocks, given.rebuild, not given.no_compile)
        encoder, cosine = _encoder("bfloat16", given.blocks, given.rebuild, not given.no_compile)
    rows = [
        *(Row(f"linear layers in float32: {way} / stored, in the mean", 1.0, one, "x") for way, one in floats.items()),
        Row("encoder in float32, 5 shapes: packed / as stored, in the mean", 1.0, plain, "x"),
        *(
            Row(f"linear layers in bfloat16, at most 256 rows: {way} / stored", 1.0, one, "x")
            for way, one in layers.items()
        ),
        Row("linear layers of at most 8 rows: four bits / as stored, in the mean", 1.0, four_bits, "x"),
        Row("encoder, 5 shapes: packed / as stored, in the mean", 1.0, encoder, "x"),
        Row("encoder: least cosine beside float32", 0.9998, cosine, at_least=True),
    ]
    report(rows + _loads(given.rebuild), given.json)


def _loads(rebuild: bool) -> list[Row]:
    """For each dtype that this processor has packed."""
    kinds = {torch.float32: "aten::mm.out", torch.bfloat16: "aten::linear"}
    with torch.no_grad():
        return [_load(kind, rebuild) for kind, op in kinds.items() if packs(op, kind)]


def _table(what: str, calls: Callable, blocks: int, most: int) -> dict[str, float]:
    """Prints the ratios of each way to call a layer to the last of them, by layer and rows; gives the means of those of
    at most so many rows."""
    lines: dict[str, list[list[str]]] = {}
    found: dict[str, list[float]] = {}
    for width, out in LAYERS:
        times = [_medians(calls(rows, width, out), blocks) for rows in ROWS]
        *ways, last = times[0]
        for way in ways:
            ratios = [one[way] / one[last] for one in times]
            lines.setdefault(way, []).append([f"{width} to {out}", *(f"{ratio:.2f}" for ratio in ratios)])
            found.setdefault(way, []).extend(ratio for rows, ratio in zip(ROWS, ratios) if rows <= most)
    for way, its in lines.items():
        print(f"{what.format(way=way)}, by rows\n" + table(["layer", *map(str, ROWS)], its) + "\n")
    return {way: statistics.geometric_mean(ratios) for way, ratios in found.items()}


def _linear(kind: torch.dtype, rows: int, width: int, out: int) -> dict[str, Callable[[], object]]:
    """Calls that write into planned memory, as a program has them: a product with an out variant, and a product that
    allocates and is copied."""
    count = max(2, TOGETHER // (width * out * kind.itemsize))
    weights = [torch.randn(out, width).to(kind) for _ in range(count)]
    x, bias = torch.randn(rows, width).to(kind), torch.randn(out).to(kind)
    result = torch.empty(rows, out, dtype=kind)
    op, given = torch.ops.aten.linear.default, (x, None, bias)
    ways: dict[str, Callable[[], object]] = {}
    if takes((out, width), kind):
        calls = [LibraryWeight(weight).into(op, given, {}, result) for weight in weights]
        ways["library"] = lambda: [call() for call in calls]
    packed = [OnednnWeight(weight).call(op, given, {}) for weight in weights]
    ways["packed"] = lambda: [result.copy_(call()) for call in packed]
    ways["stored"] = lambda: [torch.addmm(bias, x, weight.t(), out=result) for weight in weights]
    return ways


def _int4(rows: int, width: int, out: int) -> dict[str, Callable[[], object]]:
    """The same with weights of four bits, in groups of 64."""
    by_kernel, _ = _int4_or_floats(rows, width, out).values()
    return {"four bits": by_kernel, "stored": _linear(torch.bfloat16, rows, width, out)["stored"]}


def _int4_or_floats(rows: int, width: int, out: int) -> dict[str, Callable[[], object]]:
    """Weights of four bits, read by their kernel, and made floats in each call."""
    weights = [
        torch.randint(0, 256, (out, width // 2), dtype=torch.uint8)
        for _ in range(max(2, TOGETHER // (width * out * 2)))
    ]
    x, factors = torch.randn(rows, width).bfloat16(), torch.rand(width // 64, out, 2).bfloat16()
    result, op = torch.empty(rows, out).bfloat16(), torch.ops.aten._weight_int4pack_mm_for_cpu.default
    packed = [Int4Weight(weight).call(op, (x, weight, 64, factors), {}) for weight in weights]

    def by_kernel() -> None:
        for call in packed:
            result.copy_(call())

    def by_floats() -> None:
        for weight in weights:
            result.copy_(linear_int4(x, weight, 64, factors))

    return {"kernel": by_kernel, "floats": by_floats}


def _int8_or_floats(rows: int, width: int, out: int) -> dict[str, Callable[[], object]]:
    """Weights of int8, likewise."""
    weights = [
        torch.randint(-127, 128, (out, width), dtype=torch.int8) for _ in range(max(2, TOGETHER // (width * out * 2)))
    ]
    x, scale = torch.randn(rows, width).bfloat16(), torch.rand(out).bfloat16()
    result, op = torch.empty(rows, out).bfloat16(), torch.ops.aten._weight_int8pack_mm.default

    def by_kernel() -> None:
        for weight in weights:
            result.copy_(op(x, weight, scale))

    def by_floats() -> None:
        for weight in weights:
            result.copy_(in_floats(x, weight, scale))

    return {"kernel": by_kernel, "floats": by_floats}


def _encoder(kind: str, blocks: int, rebuild: bool, compiled: bool) -> tuple[float, float]:
    """The mean ratio of calls with packed weights to those without, and the least cosine of an embedding beside that of
    the float32 original."""
    path, made = artifact(kind, rebuild), recipe(kind)
    original, exact = load_model(job_of(parse_recipe(made))), load_model(job_of(read_recipe("recipes/minilm.yaml")))
    peers: dict[str, Callable] = {"packed": aotair.load(path), "stored": aotair.load(path, pack_weights=False)}
    peers["eager"] = original
    if compiled:
        peers["torch.compile"] = torch.compile(original, dynamic=False, options={"freezing": True})
    entry, lines, ratios, cosines = job_of(parse_recipe(made)).entries[0], [], [], []
    for batch, seq in SHAPES:
        inputs = random_inputs(entry, {"batch": batch, "seq": seq}, 1)
        inputs["attention_mask"][:, 0] = 1  # no sentence is empty
        times = _medians({what: functools.partial(model, **inputs) for what, model in peers.items()}, blocks)
        cosine = torch.nn.functional.cosine_similarity(peers["packed"](**inputs).float(), exact(**inputs), dim=-1)
        cosines.append(float(cosine.min()))
        ratios.append(times["packed"] / times["stored"])
        lines.append([f"{batch}, {seq}", *(f"{one * 1e3:.2f}" for one in times.values()), f"{ratios[-1]:.2f}"])
    print(f"milliseconds of a call, in {kind}\n" + table(["batch, seq", *times, "packed / stored"], lines) + "\n")
    return statistics.geometric_mean(ratios), min(cosines)


class _Deep(torch.nn.Module):
    """Some linear layers of 4096 by 4096."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _load(kind: torch.dtype, rebuild: bool) -> Row:
    """What packing adds to a load of half a GB, a GB; and what oneDNN's own call takes, over the same weights."""
    name = str(kind).removeprefix("torch.")
    out, model = BUILD / f"half_a_gb_{name}.aotair", _Deep((1 << 29) // (kind.itemsize << 24)).to(kind)
    if rebuild or not out.exists():
        print(f"building {out} …", flush=True)
        x = {"shape": [1, 4096], "dtype": name}
        aotair.build(model=model, out=out, inputs={"x": x}, verify={"atol": 0.05, "rtol": 0.05})
    ways: dict[str, Callable[[], object]] = {
        "packed": lambda: aotair.load(out).close(),
        "as stored": lambda: aotair.load(out, pack_weights=False).close(),
        _BARE: lambda: [OnednnWeight(layer.weight.data) for layer in model.layers],
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(7):
        for way, call in ways.items():
            start = time.perf_counter()
            call()
            found[way].append(time.perf_counter() - start)
    seconds = {way: statistics.median(times) for way, times in found.items()}
    nbytes = sum(weight.nbytes for weight in model.parameters())
    print(f"{nbytes / 1e9:.2f} GB in {name}: " + ", ".join(f"{way} {one:.2f} s" for way, one in seconds.items()))
    added = max(0.0, seconds["packed"] - seconds["as stored"]) / (nbytes / 1e9)
    peer = f"oneDNN's own call {seconds[_BARE] / (nbytes / 1e9):.2f} s"
    return Row(f"seconds that packing adds to a load, a GB in {name}", 0.25, added, "s", peer)


def _medians(calls: dict[str, Callable[[], object]], blocks: int) -> dict[str, float]:
    """Seconds a call, each the median over blocks of at least 5 ms; the first round warms up."""
    found: dict[str, list[float]] = {what: [] for what in calls}
    for number in range(blocks + 1):
        for what, call in calls.items():
            call()
            start, count = time.perf_counter(), 0
            while count == 0 or time.perf_counter() - start < 0.005:
                call()
                count += 1
            if number:
                found[what].append((time.perf_counter() - start) / count)
    return {what: statistics.median(times) for what, times in found.items()}


if __name__ == "__main__":
    main()

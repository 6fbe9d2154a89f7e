"""Linear layers in int8 and int4 on the CPU: how fast beside floats, and how far from them?

A stack of linear layers and the decode step of a Llama, in float32 and bfloat16, at batch 1 and 8. The peers are
torch.compile on the model of floats, and on the model that torchao quantises by the same scheme, where it is installed
(`pip install torchao`). All take turns in one process; ratios are medians over the turns.
"""

import argparse
import copy
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.text import table

from .common import BUILD, Row, options, report

SCHEMES = {
    "float32": (None, "int8_dynamic", "int8_static"),
    "bfloat16": (None, "int8_dynamic", "int8_static", "int4_weight_only"),
}
BATCHES = (1, 8)
_NEAR = 0.9  # cosine with the answers of floats: who is below computes something else, and is no peer
Call = Callable[[], torch.Tensor]


def stack(width: int = 1024, layers: int = 4) -> torch.nn.Module:
    """Pairs of linear layers, width to 4 * width and back."""
    pairs = [
        (torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)) for _ in range(layers)
    ]
    return torch.nn.Sequential(*(one for pair in pairs for one in pair))


def _stack_recipe(dtype: str) -> dict:
    return {
        "name": "stack",
        "model": {"factory": "benchmarks.quantized:stack", "dtype": dtype},
        "inputs": {"input": {"shape": ["batch", 1024], "dtype": dtype}},
        "buckets": {"batch": list(BATCHES)},
    }


def _llama_recipe(dtype: str) -> dict:
    sizes = {"layers": 6, "slots": 8, "length": 128, "hidden_size": 1024, "intermediate_size": 2816}
    rows = {"shape": ["batch"], "dtype": "int64"}
    return {
        "name": "llama",
        "model": {"factory": "recipes.language:llama", "kwargs": sizes, "dtype": dtype},
        "entry_points": {
            "decode": {
                "method": "decode",
                "inputs": {
                    "input_ids": rows | {"range": [0, 512]},
                    "positions": rows | {"range": [0, 128]},
                    "slots": rows | {"range": [0, 8], "distinct": True},
                },
                "buckets": {"batch": list(BATCHES)},
            }
        },
    }


MODELS = {"stack": (_stack_recipe, "forward"), "llama": (_llama_recipe, "decode")}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=list(MODELS), action="append")
    parser.add_argument("--turns", type=int, default=25)
    given = parser.parse_args()
    lines, rows = [], []
    for name in given.only or MODELS:
        for dtype in SCHEMES:
            for batch, found in _measured(name, dtype, given):
                lines += [[f"{name}, {dtype}, batch {batch}", *cells] for cells in found["lines"]]
                rows += found["rows"]
    head = ["model", "who", "ms", "of aotair's floats", "error", "cosine"]
    print(table(head, lines) + "\n", flush=True)
    report(rows, given.json)


def _measured(name: str, dtype: str, given: argparse.Namespace) -> Iterator[tuple[int, dict]]:
    recipe, method = MODELS[name][0](dtype), MODELS[name][1]
    original = load_model(job_of(parse_recipe(recipe)))
    loaded = {scheme: aotair.load(_built(recipe, scheme, dtype, given.rebuild)) for scheme in SCHEMES[dtype]}
    peers = {"torch.compile": original} | _torchao(original)
    for batch in BATCHES:
        inputs = _inputs(name, dtype, batch)
        calls: dict[str, Call] = {
            f"aotair, {scheme or 'floats'}": _calling(model.entry_points[method], inputs)
            for scheme, model in loaded.items()
        }
        for peer, model in peers.items():
            torch._dynamo.reset()
            compiled = torch.compile(getattr(model, method), dynamic=False)
            calls[peer] = _calling(compiled, inputs)
        with torch.no_grad():
            want = getattr(original, method)(*inputs).double()
            yield batch, _compared(f"{name}, {dtype}, batch {batch}", calls, want, given.turns)


def _built(recipe: dict, scheme: str | None, dtype: str, rebuild: bool) -> Path:
    path = BUILD / f"quantized.{recipe['name']}.{dtype}.{scheme or 'floats'}.aotair"
    if rebuild or not path.exists():
        # Here only the error beside the model of floats counts, which is printed; of four bits a step is large.
        verify = {"verify": {"atol": 0.1, "rtol": 0.1}} if scheme == "int4_weight_only" else {}
        aotair.build(recipe | verify | ({} if scheme is None else {"quantize": {"linear": scheme}}), path)
    return path


def _torchao(original: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The model as torchao quantises it: int8 by channel, activations by token; lm_head stays."""
    if importlib.util.find_spec("torchao") is None:
        return {}
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = copy.deepcopy(original)
    quantize_(
        model,
        Int8DynamicActivationInt8WeightConfig(),
        lambda module, name: isinstance(module, torch.nn.Linear) and not name.endswith("lm_head"),
    )
    return {"torchao int8, torch.compile": model}


def _inputs(name: str, dtype: str, batch: int) -> list[torch.Tensor]:
    if name == "stack":
        generator = torch.Generator().manual_seed(batch)
        return [torch.randn(batch, 1024, generator=generator).to(getattr(torch, dtype))]
    return [torch.arange(batch), torch.full((batch,), 64), torch.arange(batch)]


def _calling(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> Call:
    return lambda: function(*inputs)


def _compared(what: str, calls: dict[str, Call], want: torch.Tensor, turns: int) -> dict:
    errors = {name: _error(call().double(), want) for name, call in calls.items()}
    times = _times(calls, turns)
    floats = times["aotair, floats"]
    ratios = {name: statistics.median(a / b for a, b in zip(mine, floats)) for name, mine in times.items()}
    lines = [
        [name, f"{1e3 * statistics.median(times[name]):.3f}", f"{ratios[name]:.2f}", f"{error:.1e}", f"{cosine:.5f}"]
        for name, (error, cosine) in errors.items()
    ]
    ours, rows = "aotair, int8_dynamic", []
    for peer in calls:
        if not peer.startswith("aotair, int") and errors[peer][1] > _NEAR:
            ratio = statistics.median(a / b for a, b in zip(times[ours], times[peer]))
            rows.append(Row(f"{what}: int8_dynamic / {peer}", 1.0, ratio, "x"))
    if (four_bits := "aotair, int4_weight_only") in calls:
        rows.append(Row(f"{what}: int4_weight_only / aotair, floats", 1.0, ratios[four_bits], "x"))
    return {"lines": lines, "rows": rows}


def _error(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0)
    return ((got - want).norm() / want.norm()).item(), cosine.item()


def _times(calls: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Seconds a call, for each turn; a turn lasts about 20 ms for each."""
    counts = {name: max(1, int(0.02 / _block(call, 3))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(_block(call, counts[name]))
    return times


def _block(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()

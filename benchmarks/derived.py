"""Other checkpoints in models whose weights are made of others: are answers, addresses and sizes what they should be?

For each model: one artifact, loaded; then, three times, other weights by `load_weights`, beside a fresh build of those.
The peer is that build. `pip install 'aotair[others]'`.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import Program
from aotair_runtime.format.text import table
from aotair_runtime.format.torch_names import dtype

from . import language, others_models
from .common import BUILD, Row, options, report

CHECKPOINTS = 3
_IDS = {"shape": [2, 8], "dtype": "int64", "range": [3, 96]}
_EXPERTS = {
    "name": "MixtralModel", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "num_key_value_heads": 2, "use_cache": False,
    "pad_token_id": 0, "num_local_experts": 4,
}  # fmt: skip
RECIPES: Mapping[str, dict] = {
    "Llama in int8": language.recipe(
        "llama", 2, quantize={"linear": "int8_dynamic"}, verify={"atol": 0.5, "rtol": 0.5}
    ),
    "Qwen3": language.recipe("qwen3", 2),
    "DeepSeek-V3": language.recipe("deepseek_v3", 2),
    "resnet18, norms folded": {
        "name": "resnet18",
        "model": {"factory": "benchmarks.others_models:vision", "kwargs": {"name": "resnet18"}},
        "inputs": {"x": {"shape": [1, 3, 64, 64], "dtype": "float32"}},
        "verify": {"atol": 1e-4, "rtol": 1e-4},
    },
    "Mixtral": {
        "name": "mixtral",
        "model": {"factory": "benchmarks.others_models:transformers", "kwargs": _EXPERTS},
        "inputs": {"input_ids": _IDS, "attention_mask": {"shape": [2, 8], "dtype": "int64", "range": [1, 2]}},
    },
}


def main() -> None:
    given = options(__doc__).parse_args()
    others_models.torchvision_first()
    rows, lines = [], []
    for name, recipe in RECIPES.items():
        found = _tried(recipe)
        lines.append(
            [name, *(str(found[key]) for key in ("derived", "wrong", "moved", "captures")), f"{found['ms']:.0f}"]
        )
        rows.append(Row(f"{name}: answers that are not those of a fresh build", 0, found["wrong"], f"of {CHECKPOINTS}"))
        rows.append(Row(f"{name}: addresses that moved, captures", 0, found["moved"] + found["captures"], ""))
        rows.append(Row(f"{name}: weights file beside what its programs read", 1.01, found["size"], "x"))
    head = ["model", "derived", "wrong", "moved", "captures", "reload, ms"]
    print(table(head, lines) + "\n")
    report(rows, given.json)


def _tried(recipe: dict) -> dict[str, float]:
    path = aotair.build(recipe, BUILD / "derived.aotair")
    allowed = {"device": "cpu", "allow_namespaces": ["npu"], "enable_output_clone": True}
    wrong, moved, captures, times = 0, 0, 0, []
    with aotair.load(path, **allowed) as model:
        addresses, before = _addresses(model), _captures(model)
        calls = [_inputs(recipe, seed) for seed in range(2)]
        for seed in range(1, CHECKPOINTS + 1):
            file = _checkpoint(recipe, seed)
            start = time.perf_counter()
            model.load_weights(file)
            times.append(1e3 * (time.perf_counter() - start))
            part = {**recipe["model"], "weights": str(file)}
            with aotair.load(aotair.build({**recipe, "model": part}, BUILD / "fresh.aotair"), **allowed) as fresh:
                wrong += _answers(model, calls) != _answers(fresh, calls)
        moved = sum(one != other for one, other in zip(addresses, _addresses(model)))
        captures = _captures(model) - before
        program = model.program
    return {
        "derived": sum(constant.kind == "derived" for constant in program.constants),
        "wrong": wrong,
        "moved": moved,
        "captures": captures,
        "size": (path / "weights.safetensors").stat().st_size / _read(program),
        "ms": sorted(times)[len(times) // 2],
    }


def _checkpoint(recipe: dict, seed: int) -> Path:
    """Other weights for the recipe's model: its own, each moved a little."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, tensor in load_model(job_of(parse_recipe(recipe))).state_dict().items():
        floats = tensor.dtype.is_floating_point
        noise = torch.rand(tensor.shape, generator=generator) * 0.1 + 0.95
        found[name] = (tensor * noise.to(tensor.dtype) if floats else tensor).clone()
    file = BUILD / "derived.safetensors"
    safetensors.torch.save_file(found, file)
    return file


def _inputs(recipe: dict, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(*item["range"], item["shape"], generator=generator)
        if "range" in item
        else torch.randn(item["shape"], generator=generator)
        for item in recipe["inputs"].values()
    ]


def _answers(model: aotair.Model, calls: list[list[torch.Tensor]]) -> list[bytes]:
    model.reset_state()
    outputs = [model.entry_points["forward"].flat(inputs) for inputs in calls]
    return [output.contiguous().view(torch.uint8).numpy().tobytes() for found in outputs for output in found]


def _addresses(model: aotair.Model) -> list[int]:
    return [tensor.data_ptr() for tensor in model._resident.constants]


def _captures(model: aotair.Model) -> int:
    return sum(bucket.captures for bucket in model.stats().buckets)


def _read(program: Program) -> int:
    """The bytes of the constants that some bucket, or a state's first value, is made of."""
    numbers = {state.constant for state in program.state}
    for entry in program.entry_points:
        numbers.update(t.index for bucket in entry.buckets for t in bucket.tensors if t.space == 1)
    there = tensors(program)
    return sum(math.prod(there[n].shape) * dtype(there[n].dtype).itemsize for n in numbers)


if __name__ == "__main__":
    main()

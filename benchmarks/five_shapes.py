"""The sentence encoder with a bucket for each of five shapes: its recipe and its artifact; in float32, in bfloat16,
"mixed": in float32 with products in bfloat16 (`precision: bf16`), or with linear layers in "int8" (`int8_dynamic`)."""

from pathlib import Path

import aotair
from aotair.recipe.read import read_recipe

from .common import BUILD

SHAPES = ((1, 16), (2, 24), (1, 128), (5, 100), (8, 128))  # batch and length


def recipe(dtype: str) -> dict[str, object]:
    tolerance = {"verify": {"atol": 0.05, "rtol": 0.05}} if dtype == "bfloat16" else {}
    return {
        **read_recipe("recipes/minilm.yaml").model_dump(mode="json", exclude_unset=True),
        "name": f"minilm_{dtype}",
        "model": {"factory": "recipes.minilm:build", "dtype": "bfloat16" if dtype == "bfloat16" else "float32"},
        "config": {"experimental_config": {"precision": "bf16" if dtype == "mixed" else None}},
        "buckets": [{"batch": batch, "seq": seq} for batch, seq in SHAPES],
        **({"quantize": {"linear": "int8_dynamic"}} if dtype == "int8" else {}),
        **tolerance,
    }


def artifact(dtype: str, rebuild: bool) -> Path:
    """Built once."""
    out = BUILD / f"minilm_{dtype}.aotair"
    if rebuild or not out.exists():
        print(f"building {out} …", flush=True)
        aotair.build(recipe(dtype), out)
    return out

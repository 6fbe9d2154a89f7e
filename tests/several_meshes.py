"""Artifacts for several meshes, and those for each of them alone, which several tests need: each is built once."""

from pathlib import Path
from typing import Any

from cases import RECIPES, recipe
from once import made_once

import aotair

MESHES: list[dict[str, int]] = [{}, {"tp": 2}, {"tp": 4}]
SHARED = RECIPES["shared"]
# Its weights in bfloat16 follow from those of the checkpoint.
ROUNDED = recipe(
    "Wide",
    {"x": {"shape": ["n", 256], "dtype": "float32"}},
    {"n": [1, 4]},
    parallel={"up": "colwise", "down": "rowwise"},
    config={"experimental_config": {"precision": "bf16"}},
)
DEEP = RECIPES["deep"]


def over(recipe: dict[str, Any], mesh: dict[str, int] | list[dict[str, int]]) -> dict[str, Any]:
    """The recipe for these ranks."""
    several = any(mesh) if isinstance(mesh, list) else bool(mesh)
    return recipe | {"mesh": mesh} | ({} if several else {"parallel": "auto"})


def built(common: Path, recipe: dict[str, Any], mesh: dict[str, int] | list[dict[str, int]]) -> Path:
    """The artifact of a recipe over these ranks."""
    sizes = mesh if isinstance(mesh, list) else [mesh]
    name = "-".join("".join(f"{axis}{size}" for axis, size in one.items()) or "one" for one in sizes)
    path = common / "meshes" / f"{recipe['name']}-{name}{'' if isinstance(mesh, list) else '-alone'}.aotair"
    return made_once(path, lambda out: aotair.build(over(recipe, mesh), out))

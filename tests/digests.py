"""The digests of every file of the artifacts of all recipes and of the tests' models, for each device, as JSON.

`python tests/digests.py before.json`; then, after a change that is to leave every artifact as it was,
`python tests/digests.py after.json --beside before.json` says which differ. Builds that are refused count with their
errors.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from cases import MODELS, RECIPES

import aotair
from aotair.recipe.read import parse_recipe, read_recipe
from aotair.recipe.recipe import Recipe
from aotair_runtime.errors import AotairError

ROOT = Path(__file__).parent.parent
DEVICES = ("cpu", "npu", "cuda")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--beside", type=Path, help="digests of before")
    parser.add_argument("--only", default="", help="recipes whose name holds this")
    given = parser.parse_args()
    before = json.loads(given.beside.read_text()) if given.beside else {}
    torch.set_num_threads(1)
    given.file = given.file.resolve()
    sys.path.insert(0, str(ROOT))
    os.chdir(Path(__file__).parent)  # what an artifact follows from has no place of this checkout's in it
    found = {}
    for name, recipe in recipes():
        if given.only in name:
            print(name, file=sys.stderr, flush=True)
            found[name] = digests(recipe)
            given.file.write_text(json.dumps(found, indent=1))
    files = sum(len(item) for item in found.values())
    print(f"{len(found)} builds, {files} digests")
    if given.beside is None:
        return 0
    changed = {name: _differences(before.get(name, {}), item) for name, item in found.items()}
    changed = {name: differences for name, differences in changed.items() if differences}
    for name, differences in changed.items():
        print(f"differs: {name}: {', '.join(differences)}")
    print(f"{len(changed)} differ")
    return 1 if changed else 0


def recipes() -> Iterator[tuple[str, Recipe]]:
    for device in DEVICES:
        for path in sorted((ROOT / "recipes").glob("*.yaml")):
            yield f"{path.stem} on {device}", read_recipe(path, [f"target.device={device}"])
        for name, recipe in RECIPES.items():
            target = {**recipe.get("target", {}), "device": device}
            data = json.loads(json.dumps({**recipe, "target": target}).replace(MODELS, "models.py"))
            try:
                yield f"tests' {name} on {device}", parse_recipe(data)
            except AotairError:
                continue  # it is for another device


def digests(recipe: Recipe) -> dict[str, str]:
    """By file of the artifact; under "refused" the error where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = aotair.build(recipe, Path(folder) / "a.aotair")
        except AotairError as error:
            return {"refused": str(error)}
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


if __name__ == "__main__":
    sys.exit(main())

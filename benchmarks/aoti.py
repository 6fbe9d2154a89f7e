"""The peer's packages: AOTInductor with freezing, one for each batch size, the sequence dynamic; built once.

A batch that varies too would need one package only, but slower code; with one batch size each, the peer gets the
shapes that it likes best.
"""

from pathlib import Path

import torch

from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import read_recipe

from .common import BUILD
from .startup_node import BATCHES, LENGTHS


def packages(rebuild: bool) -> list[Path]:
    """The paths of the packages, in the order of BATCHES."""
    paths = [(BUILD / "aoti" / f"minilm-{batch}.pt2").resolve() for batch in BATCHES]
    for batch, path in zip(BATCHES, paths):
        if rebuild or not path.exists():
            print(f"building {path.relative_to(Path.cwd())} …", flush=True)
            _build(batch, path)
    return paths


def _build(batch: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = load_model(job_of(read_recipe("recipes/minilm.yaml")))
    # An example length of its own: 16 or 256 would pass for a bound of the range.
    inputs = (torch.full((batch, 60), 7), torch.ones(batch, 60, dtype=torch.int64))
    seq = torch.export.Dim("seq", min=LENGTHS[0], max=LENGTHS[-1])
    with torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=({1: seq}, {1: seq}))
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs={"freezing": True}
        )  # fmt: skip

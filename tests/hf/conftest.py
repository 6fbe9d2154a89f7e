"""A checkpoint on disk and its artifact, built once."""

from pathlib import Path

import checkpoints
import pytest
from once import made_once

import aotair

BUCKETS = {
    "prefill": {"buckets": {"batch": [1, 2], "seq": [8, 32]}},
    "decode": {"buckets": {"batch": [1, 2]}},
}


@pytest.fixture(scope="session")
def checkpoint(common_folder: Path) -> Path:
    model = checkpoints.seeded(checkpoints.llama())
    return made_once(common_folder / "tiny", lambda path: checkpoints.write_checkpoint(path, model))


@pytest.fixture(scope="session")
def artifact(checkpoint: Path, common_folder: Path) -> Path:
    model = {"pretrained": str(checkpoint), "kwargs": {"slots": 2, "length": 64}}
    recipe = {"name": "tiny", "model": model, "entry_points": BUCKETS}
    return made_once(common_folder / "tiny.aotair", lambda path: aotair.build(recipe, path))

"""A checkpoint on disk and its artifact, built once."""

from pathlib import Path

import checkpoints
import pytest

import aotair

BUCKETS = {
    "prefill": {"buckets": {"batch": [1, 2], "seq": [8, 32]}},
    "decode": {"buckets": {"batch": [1, 2]}},
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_checkpoint(
        tmp_path_factory.mktemp("hub") / "tiny", checkpoints.seeded(checkpoints.llama())
    )


@pytest.fixture(scope="session")
def artifact(checkpoint: Path) -> Path:
    model = {"pretrained": str(checkpoint), "kwargs": {"slots": 2, "length": 64}}
    return aotair.build({"name": "tiny", "model": model, "entry_points": BUCKETS}, checkpoint.parent / "tiny.aotair")

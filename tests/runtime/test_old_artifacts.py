"""Artifacts of earlier formats, and of earlier torch, still load and still answer; they are never made again."""

from pathlib import Path

import pytest
from cases import ROOT

import aotair
from aotair_runtime.format.schema import FORMAT
from aotair_runtime.weights.golden import replay_golden

OLD = sorted(path for path in (ROOT / "tests" / "artifacts").glob("*/*") if path.is_dir())


def test_there_are_some():
    formats = [f"format{number}" for number in range(1, FORMAT)]
    assert sorted({path.parent.name for path in OLD}) == [*formats, "torch2.9"]
    names = {f"{path.parent.name}/{path.name}" for path in OLD}
    # The space of inputs copied and in place, streams; derived weights; packed weights.
    assert names >= {"format1/cache", "format2/streams", "format3/derived", "format4/packed"}


@pytest.mark.parametrize("path", OLD, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_an_old_artifact_loads_and_answers(path: Path):
    with aotair.load(path, enable_output_clone=True) as model:
        results = list(replay_golden(model))
    assert results and all(result.within for result in results)

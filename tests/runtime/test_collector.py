"""A load lets the collector of cycles rest, and no longer."""

import gc
from pathlib import Path

import pytest
import torch

import aotair
from aotair_runtime.devices import collector
from aotair_runtime.errors import AotairError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = {"input": {"shape": [1, 4], "dtype": "float32"}}
    out = tmp_path_factory.mktemp("collector") / "m"
    return aotair.build(model=torch.nn.Linear(4, 4), name="m", out=out, inputs=inputs)


@pytest.mark.parametrize("enabled", [True, False])
def test_afterwards_it_is_as_before_whatever_happens(path: Path, enabled: bool, monkeypatch: pytest.MonkeyPatch):
    seen = list[bool]()
    monkeypatch.setattr("aotair_runtime.model.check_requirements", lambda *_: seen.append(gc.isenabled()))
    try:
        gc.enable() if enabled else gc.disable()
        with aotair.load(path):
            assert gc.isenabled() is enabled
        with pytest.raises(AotairError):
            aotair.load(path / "nowhere")
        assert gc.isenabled() is enabled and seen == [False]
        with pytest.raises(KeyError), collector.at_rest():
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_blocks_that_overlap_end_with_the_last(enabled: bool):
    first, second = collector.at_rest(), collector.at_rest()
    try:
        gc.enable() if enabled else gc.disable()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled(), "the other is within still"
        second.__exit__(None, None, None)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()

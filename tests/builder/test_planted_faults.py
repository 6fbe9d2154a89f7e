"""The proof is not blind: a fault that a builder might make is refused, and what is right is not."""

import functools
from pathlib import Path

import planted
import pytest

import aotair
from aotair.errors import ProofError
from benchmarks import zoo

MODELS = tuple(dict.fromkeys(fault.model for fault in planted.FAULTS))
get = functools.cache(planted.Model)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--faults")
    if "fault" in metafunc.fixturenames:
        found = [fault for fault in planted.FAULTS if fault.often or every]
        metafunc.parametrize("fault", found, ids=map(str, found))
    if "right" in metafunc.fixturenames:
        metafunc.parametrize("right", zoo.ZOO if every else ("resnet", "dinov2"))
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", MODELS if every else sorted({f.model for f in planted.FAULTS if f.often}))


def test_what_is_planted_is_refused(fault: planted.Fault, tmp_path: Path):
    with pytest.raises(ProofError, match=r"is not the original model's|changes the outputs"):
        get(fault.model).proved(tmp_path / "a", fault.plant)


def test_where_nothing_is_planted_all_is_proved(name: str, tmp_path: Path):
    proved = get(name).proved(tmp_path / "a", lambda made: None)
    buckets = [bucket for entry in proved.program.entry_points for bucket in entry.buckets]
    assert buckets and all(bucket.proof.units <= 64 for bucket in buckets)


def test_no_right_model_is_refused(right: str, tmp_path: Path):
    """Forty architectures of transformers, whose sums run in another order in the artifact than in the original."""
    aotair.build(zoo.recipe(right), tmp_path / "a.aotair")

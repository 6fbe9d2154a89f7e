"""Entry points and proofs in several processes: the same bytes and refusals as in one, and a kill is one of them."""

import os
import signal
from pathlib import Path

import pytest
import torch
from cases import MODELS, NOTEBOOK

import aotair
from aotair.errors import ProcessError, ProofError, RecipeError
from aotair.export import entries
from aotair.prove import prove


@pytest.fixture
def shares(monkeypatch):
    """However little there is to do."""
    monkeypatch.setattr(entries, "_WORTH", 0)
    monkeypatch.setattr(prove, "_WORTH", 0.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_the_artifact_is_the_same_however_many_processes_make_it(shares, tmp_path):
    one, three = (aotair.build(NOTEBOOK, tmp_path / f"{jobs}.aotair", jobs=jobs) for jobs in (1, 3))
    assert contents(one) == contents(three)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.aotair", "3.aotair"]


def test_graphs_are_exported_by_other_processes(shares, tmp_path, monkeypatch):
    exported, original = [], entries._exported
    monkeypatch.setattr(entries, "_exported", lambda *given: exported.append(given[1].entry) or original(*given))
    aotair.build(NOTEBOOK, tmp_path / "a.aotair", jobs=2)
    assert len(exported) == 1, "the other one is another process's"


def test_a_refusal_is_that_of_one_process(shares, tmp_path):
    config = {
        "post_grad_custom_post_pass": f"{MODELS}:forget_the_query",
        "experimental_config": {"composites": "whole"},
    }
    said = []
    for jobs in (1, 2):
        with pytest.raises(ProofError) as caught:
            aotair.build(NOTEBOOK | {"config": config}, tmp_path / "a.aotair", jobs=jobs)
        said.append(str(caught.value))
    assert said[0] == said[1] and not list(tmp_path.iterdir())


def test_a_process_that_the_system_kills_ends_the_build(shares, tmp_path, monkeypatch):
    first, original = os.getpid(), entries.export_buckets

    def dies(model: torch.nn.Module, one: object) -> object:
        if os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(model, one)

    monkeypatch.setattr(entries, "export_buckets", dies)
    with pytest.raises(ProcessError, match="SIGKILL"):
        aotair.build(NOTEBOOK, tmp_path / "a.aotair", jobs=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [0, -1, True, 1.5])
def test_a_number_of_processes_is_one_at_least(jobs, tmp_path):
    with pytest.raises(RecipeError, match="jobs="):
        aotair.build(NOTEBOOK, tmp_path / "a.aotair", jobs=jobs)

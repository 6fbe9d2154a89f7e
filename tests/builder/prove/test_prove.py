"""Every bucket against the original model: what is recorded, and what a wrong bucket or a padding that shows says."""

import pytest
from cases import RECIPES

import aotair
from aotair import pack
from aotair.errors import ProofError
from aotair_runtime.artifact.open import read_program


def test_what_was_proved_is_recorded(built):
    (entry,) = read_program(built("encoder")).entry_points
    for bucket in entry.buckets:
        assert bucket.proof.max_abs_error <= 1e-5
        assert bucket.proof.padding or bucket.sizes == (1, 1)
    runs = [run for bucket in entry.buckets for run in bucket.proof.padding]
    assert {run.poison.split("=")[0] for run in runs} == {"ids"}
    poisons = {run.poison.partition("; real values: ")[::2] for run in runs}
    assert {poison for poison, _ in poisons} == {"ids=random", "ids=49", "ids=0"}
    assert {words for _, words in poisons} == {
        "",
        "ids all the least, mask all but the pad value",
        "ids all the greatest",
    }
    assert all(run.max_abs_error <= 1e-5 for run in runs)
    linear = [run for b in read_program(built("linear")).entry_points[0].buckets for run in b.proof.padding]
    assert {run.poison.partition(";")[0] for run in linear} == {"x=nan", "x=inf", "x=-inf", "x=1e+30"}
    assert all(run.identical for run in linear)


def test_what_is_proved_is_what_was_written(tmp_path, monkeypatch):
    """A fault that only the file has."""
    save = pack.safetensors.torch.save_file
    monkeypatch.setattr(
        pack.safetensors.torch, "save_file", lambda tensors, file: save({n: t * 2 for n, t in tensors.items()}, file)
    )
    with pytest.raises(ProofError, match="is not the original model's"):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")
    assert not list(tmp_path.iterdir())

"""What a program stores: weights that buckets read, what is made of others, and nothing else."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from exports import model_of, shaped

import aotair
from aotair.errors import UnsupportedError
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.errors import CaptureError

X = shaped("n", 4)


def artifact(model: torch.nn.Module, path: Path, **parts: object):
    return open_artifact(aotair.build(model=model, out=path, inputs={"x": X}, buckets=[{"n": 2}], **parts))


def model(scale: float = 2.0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4, generator=generator))
    return model_of(
        lambda self, x: (x @ (self.w * self.s + self.k), x + self.k), w=weight, s=torch.tensor(scale), k=torch.ones(4)
    )


def test_sources_that_no_bucket_reads_are_not_stored(tmp_path: Path):
    found = artifact(model(), tmp_path / "x.aotair")
    assert sorted(c.name for c in found.program.constants) == ["k", "w:add"]
    assert [c.name for c in found.program.prologue.sources] == ["w", "s"] and found.program.unread == ()
    stored = safetensors.torch.load_file(found.path / "weights.safetensors")
    assert sorted(stored) == ["k", "w:add"]
    original = model()
    assert torch.equal(stored["w:add"], original.w * original.s + original.k)
    assert "Weights made of others" in (found.path / "report.html").read_text()


def test_the_option_leaves_all_of_it_to_the_calls(tmp_path: Path):
    config = aotair.CompilerConfig()
    config.experimental_config.fold_constants = False
    found = artifact(model(), tmp_path / "x.aotair", config=config)
    assert sorted(c.name for c in found.program.constants) == ["k", "s", "w"] and not found.program.prologue.parts


def test_entry_points_share_what_they_compute_alike(tmp_path: Path):
    def one(self, x):
        return x @ (self.w * 2)

    def two(self, x):
        return (x - 1) @ (self.w * 2)

    both = model_of(one, w=torch.randn(4, 4))
    type(both).two = two
    points = {name: {"method": name, "inputs": {"x": X}, "buckets": {"n": [2, 3]}} for name in ("forward", "two")}
    found = open_artifact(aotair.build(model=both, out=tmp_path / "x.aotair", entry_points=points))
    assert [c.name for c in found.program.constants] == ["w:mul"] and len(found.program.prologue.parts) == 1


def test_what_fails_before_any_call_says_how_to_leave_it_to_the_calls(tmp_path: Path, monkeypatch):
    def fails(*_):
        raise CaptureError("instruction 0 (mul) failed: no kernel", where="the prologue of w:add")

    monkeypatch.setattr("aotair.stored.derived", fails)
    with pytest.raises(UnsupportedError, match="weights cannot be computed before a call") as caught:
        artifact(model(), tmp_path / "x.aotair")
    assert "fold_constants: false" in caught.value.fix


def test_the_same_model_gives_the_same_bytes(tmp_path: Path):
    one, two = (artifact(model(), tmp_path / f"{n}" / "x.aotair") for n in range(2))
    for file in filter(Path.is_file, one.path.rglob("*")):
        assert file.read_bytes() == (two.path / file.relative_to(one.path)).read_bytes()

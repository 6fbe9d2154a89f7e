"""A fresh process without torch_npu runs an artifact for an NPU on its CPU: from Python and by every command."""

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from marks import long
from nodes import for_device

import aotair
from aotair_runtime.artifact.open import open_artifact, read_golden

ARTIFACTS = ("npu_block", "decoder_layer", "decode", "ascend_decode")


@pytest.fixture(scope="module")
def for_npu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("npu")
    return {name: aotair.build(for_device(name, "npu"), folder / f"{name}.aotair") for name in ARTIFACTS}


def fresh(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ARTIFACTS)
@pytest.mark.parametrize("package", ["aotair", long("aotair_runtime as aotair, aotair as both")])
def test_load(for_npu, name, package):
    script = f"""
import sys
import {package}
model = aotair.load({str(for_npu[name])!r}, device="cpu")
from aotair_runtime.weights.golden import replay_golden
assert all(result.within for result in replay_golden(model)), "wrong"
assert "aotair.builder" not in sys.modules and "aotair.passes" not in sys.modules
print("right")
"""
    done = fresh("-c", script)
    assert done.stdout == "right\n", done.stderr


@pytest.mark.parametrize("name", ARTIFACTS)
def test_verify(for_npu, name):
    done = fresh("-m", "aotair.cli", "verify", for_npu[name], "--device", "cpu")
    assert done.returncode == 0 and "ok" in done.stdout, done.stderr


@pytest.mark.long
def test_bench(for_npu):
    done = fresh("-m", "aotair.cli", "bench", for_npu["npu_block"], "--device", "cpu", "--seconds", "0.01")
    assert done.returncode == 0 and "n=2" in done.stdout, done.stderr


@pytest.mark.long
def test_run(for_npu, tmp_path):
    golden = read_golden(open_artifact(for_npu["npu_block"]))
    inputs = {name: golden[f"forward.0.in.{name}"] for name in ("x", "residual", "cache", "at")}
    safetensors.torch.save_file(inputs, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    done = fresh(
        "-m", "aotair.cli", "run", for_npu["npu_block"], tmp_path / "in.safetensors", "--device", "cpu", "-o", out
    )
    assert done.returncode == 0, done.stderr
    results = safetensors.torch.load_file(out)
    for name, got in results.items():
        torch.testing.assert_close(got, golden[f"forward.0.out.{name.strip('[]')}"])
    assert results


def test_the_runtime_alone_says_what_to_import(for_npu):
    done = fresh("-c", f"import aotair_runtime as a; a.load({str(for_npu['npu_block'])!r}, device='cpu')")
    assert "RequirementError" in done.stderr and "import it, or aotair.ops.npu, first" in done.stderr

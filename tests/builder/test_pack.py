"""The artifact on disk: the same bytes for the same recipe, each weight once, small beside its weights."""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from cases import RECIPES

from aotair_runtime.artifact.open import digest


def test_two_builds_in_two_processes_are_identical(tmp_path: Path):
    for name in ("encoder", "tied", "structured", "counter"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(RECIPES[name]))
        digests = []
        for seed in ("1", "4242"):
            out = tmp_path / f"{name}{seed}.aotair"
            command = [sys.executable, "-m", "aotair.cli", "build", str(file), "-o", str(out)]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
            digests.append({entry.name: digest(entry) for entry in sorted(out.iterdir())})
        assert digests[0] == digests[1], name
        assert len(digests[0]) == 4


def test_weights_are_mapped_not_copied(built):
    from aotair_runtime.artifact.open import open_artifact

    artifact = open_artifact(built("encoder"))
    storages = {tensor.untyped_storage().data_ptr() for tensor in artifact.constants}
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.safetensors" in line]
    spans = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in mapped]
    assert storages and all(any(low <= s < high for low, high in spans) for s in storages)

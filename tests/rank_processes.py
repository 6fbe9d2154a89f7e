"""Several processes that are ranks, as torchrun would start them: `started`, and what each of them wrote, `said`; and a
checkpoint that one of them may have by mistake."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from cases import ROOT

from benchmarks.common import free_port

LIMIT = 120  # seconds, after which something hangs


def started(count: int, scenario: str, folder: Path, *args: object) -> list[subprocess.Popen]:
    """`count` processes, each of which calls `scenario` of `rank_scenarios` with its folder and `args`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    made = []
    for rank in range(count):
        place = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        own = {"LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, ROOT / "tests" / "rank_scenarios.py", scenario, folder, *map(str, args)]
        with (folder / f"log{rank}").open("w") as log:
            made.append(subprocess.Popen(command, env={**os.environ, **place, **own}, stdout=log, stderr=log))
    return made


def said(processes: Sequence[subprocess.Popen], folder: Path, expected: int = 0) -> list[Any]:
    """What each process wrote, in order, once all have ended; None for one that wrote nothing."""
    try:
        codes = [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join((folder / f"log{rank}").read_text() for rank in range(len(processes)))
    assert sum(code != 0 for code in codes) == expected, f"{codes}\n{logs}"
    files = [folder / f"said{rank}.json" for rank in range(len(processes))]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def checkpoints(model: torch.nn.Module, folder: Path) -> tuple[Path, Path, Path]:
    """The weights of a model as a checkpoint; the same, of which a part is missing; and with one number changed."""
    whole, broken, stale = (folder / f"{name}.safetensors" for name in ("other", "broken", "stale"))
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(tensors, whole)
    broken.write_bytes(whole.read_bytes()[:-100])
    next(iter(tensors.values())).view(-1)[0] += 1
    safetensors.torch.save_file(tensors, stale)
    return whole, broken, stale


def reloaded(said: Sequence[Any], want: torch.Tensor) -> None:
    """Whether each rank of the scenario `reloads` answered so after it, kept that, and moved and captured nothing."""
    for one in said:
        torch.testing.assert_close(torch.tensor(one["after"]), want, atol=1e-5, rtol=1e-5)
        assert one["kept"] == one["after"] != one["before"] and one["stayed"] and one["captures"] == 2

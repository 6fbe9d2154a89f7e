"""The devices that the runtime's tests run on, each as a node that loads artifacts built for it."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from cases import RECIPES, ROOT
from once import made_once

import aotair
from aotair.share import usable_cores
from aotair_runtime import Model


def present() -> list[str]:
    """The devices of this process: the CPU, and what torch has beside it."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append("cuda")
    if hasattr(torch, "npu") and torch.npu.is_available():
        found.append("npu")
    return found


@dataclass(frozen=True)
class Node:
    """A device, and the folder of the artifacts built for it, in which several processes may build."""

    kind: str
    folder: Path

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.kind, 0)

    @property
    def has_graphs(self) -> bool:
        """Whether a capture is one of the device, and not the calls themselves."""
        return self.kind != "cpu"

    def path(self, name: str) -> Path:
        """The artifact of one of RECIPES."""
        if self.kind == "cpu":
            return made_once(self.folder / f"{name}.aotair", lambda path: aotair.build(RECIPES[name], path))
        return made_once(self.folder / "all", lambda path: build_elsewhere(path, self.kind)) / f"{name}.aotair"

    def load(self, name: str, **options: object) -> Model:
        return aotair.load(self.path(name), **({"device": self.kind} | options))

    def stream(self) -> contextlib.AbstractContextManager:
        """A stream of its own for a thread, where the device has streams."""
        api = getattr(torch, self.kind)
        return api.stream(api.Stream(self.device)) if self.has_graphs else contextlib.nullcontext()

    def settle(self) -> tuple[int, int]:
        """(allocated, reserved) bytes of the device once nothing is left to do; for the CPU zero."""
        if not self.has_graphs:
            return 0, 0
        api = getattr(torch, self.kind)
        api.synchronize()
        return api.memory_allocated(), api.memory_reserved()

    def trim(self) -> None:
        """Let the allocator give back what nobody uses."""
        if self.has_graphs:
            getattr(torch, self.kind).empty_cache()


def for_device(name: str, kind: str) -> dict:
    """The recipe, with its target changed."""
    return RECIPES[name] | {"target": {"device": kind}}


def build_elsewhere(folder: Path, kind: str) -> None:
    """Build all RECIPES for a device into a new folder, in a process that has neither its package nor the device."""
    making = folder.with_name(f"{folder.name}.making")
    hidden = {"PYTHONPATH", "LD_LIBRARY_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = [str(ROOT), str(ROOT / "runtime"), str(ROOT / "tests")]
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(making), kind],
        env=clean
        | {"PYTHONPATH": os.pathsep.join(paths), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"the artifacts for {kind} were not built:\n{done.stderr[-3000:]}")
    making.rename(folder)


def _build(name: str) -> None:
    aotair.build(for_device(name, sys.argv[2]), Path(sys.argv[1]) / f"{name}.aotair", jobs=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(usable_cores()) as pool:
        pool.map(_build, RECIPES, chunksize=1)

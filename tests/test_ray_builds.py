"""Builds on a Ray cluster of three nodes on this machine: several recipes at once, and one that workers share."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import yaml
from cases import RECIPES
from click.testing import CliRunner

import aotair
from aotair.cli import main

SHARED = """
import os
from pathlib import Path

import torch


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(1, 8))

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        self.seen.copy_(y[:1])
        return y

    def score(self, x):
        return (self.up(x) + self.seen.sum()).softmax(-1)


def make():
    Path("workers", str(os.getpid())).touch()
    return Shared()
"""
ROWS = {"x": {"shape": ["n", 8], "dtype": "float32", "pad": 0}}
RECIPE = {
    "name": "shared",
    "model": {"factory": "shared.py:make"},
    "entry_points": {
        "forward": {"inputs": ROWS, "buckets": {"n": [1, 2, 4, 8]}},
        "score": {"method": "score", "inputs": ROWS, "buckets": {"n": [1, 3, 5]}},
    },
}


@pytest.fixture(scope="module")
def cluster(common_folder: Path) -> Iterator[None]:
    from ray.cluster_utils import Cluster

    with (common_folder / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(2):
            made.add_node(num_cpus=1)
        try:
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            yield
        finally:
            ray.shutdown()
            made.shutdown()


def assert_alike(made: Path, want: Path) -> None:
    names = sorted(file.relative_to(want) for file in want.rglob("*") if file.is_file())
    assert names == sorted(file.relative_to(made) for file in made.rglob("*") if file.is_file())
    assert all((made / file).read_bytes() == (want / file).read_bytes() for file in names)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose factory says which processes have called it, in the folder `workers`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workers").mkdir()
    (tmp_path / "shared.py").write_text(SHARED)
    (file := tmp_path / "shared.yaml").write_text(yaml.safe_dump(RECIPE))
    aotair.build(file, tmp_path / "here.aotair")
    (tmp_path / "workers" / str(os.getpid())).unlink()
    return file


def test_workers_share_one_recipe(cluster: None, recipe: Path):
    result = CliRunner().invoke(main, ["build", str(recipe), "--on", "ray"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len(list(Path("workers").iterdir())) == 3
    assert_alike(Path("shared.aotair"), Path("here.aotair"))


@pytest.mark.long
def test_a_worker_that_is_lost_leaves_its_part_to_the_first(cluster: None, recipe: Path):
    lost = threading.Thread(target=_kill_second_worker)
    lost.start()
    result = CliRunner().invoke(main, ["build", str(recipe), "--on", "ray"], catch_exceptions=False)
    lost.join()
    assert result.exit_code == 0, result.output
    assert Path("killed").exists()
    assert_alike(Path("shared.aotair"), Path("here.aotair"))


def _kill_second_worker() -> None:
    """As soon as it has begun to load the model."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for one in Path("workers").iterdir():
            if b"aotair build, worker 1" in Path("/proc", one.name, "cmdline").read_bytes():
                os.kill(int(one.name), signal.SIGKILL)
                Path("killed").touch()
                return
        time.sleep(0.01)


@pytest.mark.long
def test_what_one_recipe_cannot_be_built_for_is_said_once(cluster: None, recipe: Path):
    recipe.write_text(yaml.safe_dump(RECIPE | {"verify": {"atol": 1e-30, "rtol": 0.0}}))
    result = CliRunner().invoke(main, ["build", str(recipe), "--on", "ray"], catch_exceptions=False)
    assert result.exit_code == 1 and result.stderr.count("is not the original model's") == 1, result.stderr
    assert not Path("shared.aotair").exists()


def test_recipes_are_built_by_workers_into_the_same_bytes(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "here").mkdir()
    files = []
    for name in ("linear", "swap"):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(RECIPES[name] | {"name": name}))
        aotair.build(files[-1], tmp_path / "here" / f"{name}.aotair")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(RECIPES["linear"] | {"name": "wrong", "model": {"factory": "nothing:here"}}))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["build", *map(str, files), str(wrong), "--on", "ray"], catch_exceptions=False)
    assert result.exit_code == 1 and f"error: {wrong}: model.factory: cannot import" in result.stderr
    for name in ("linear", "swap"):
        assert_alike(tmp_path / f"{name}.aotair", tmp_path / "here" / f"{name}.aotair")
    result = CliRunner().invoke(main, ["build", str(files[0]), "--on", "ray", "--jobs", "99"])
    assert result.exit_code == 1 and "no machine of the Ray cluster has so many processors" in result.stderr

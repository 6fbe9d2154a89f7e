"""Replicas on Ray Serve, of several ranks each, under load: what is lost where one is killed, and when all are back?

    python -m benchmarks.replicas [--replicas 2] [--ranks 2] [--clients 64] [--seconds 40] [--kill replica | follower]

A cluster of several nodes on this machine; each client sends requests of the Open Inference Protocol one after the
other, sends one again that is answered with an error, and compares what comes with the original model's answer.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

import httpx
import torch
import yaml

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe

from .common import Row, free_port, options, report

ROOT = Path(__file__).parent.parent
STYLES = {"embed": "vocabulary", "up": "colwise", "down": "rowwise", "head": "gathered"}
TRIES, PAUSE = 400, 0.1  # of one request, and the seconds between two of them
KINDS = {"replica": b"ray::ServeReplica:block:Artifact", "follower": b"ray::_Follower"}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--kill", nargs="*", choices=list(KINDS), default=list(KINDS))
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        artifact = aotair.build(recipe(given.ranks), Path(folder) / "block.aotair")
        with deployed(artifact, given.replicas, given.ranks) as cluster:
            for kill in given.kill:
                found = measure(cluster, kill, given.clients, given.seconds)
                rows += _rows(found, f"{kill} killed", given.seconds)
    report(rows, given.json)


def _rows(found: "Found", what: str, seconds: float) -> Iterator[Row]:
    note = f"of {found.answered:,}, {found.answered / seconds:.0f} a second, {found.retried} sent again"
    yield Row(f"{what}: lost requests", 0, found.lost, "", note)
    yield Row(f"{what}: wrong answers", 0, found.wrong)
    yield Row(f"{what}: back to full", 20, round(found.back, 1), "s")


class Block(torch.nn.Module):
    """Tokens to scores of tokens, in ways in which ranks meet: a table and layers that they share out."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(24, width), torch.nn.Linear(width, 24)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(x + self.down(torch.relu(self.up(x))))


def recipe(ranks: int) -> dict[str, object]:
    return {
        "name": "block",
        "model": {"factory": "benchmarks.replicas:Block"},
        "inputs": {"ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 24], "pad": "any"}},
        "buckets": {"batch": [1, 4], "seq": [4, 8]},
        **({"mesh": {"tp": ranks}, "parallel": STYLES} if ranks > 1 else {}),
    }


@dataclass(frozen=True)
class Deployed:
    """An application on a cluster of nodes on this machine."""

    address: str
    replicas: int
    ranks: int

    def full(self) -> bool:
        """Whether Ray Serve has as many replicas as it should, with all of their ranks."""
        from ray import serve

        wanted = {"replica": self.replicas, "follower": self.replicas * (self.ranks - 1)}
        if any(len(processes(kind)) != count for kind, count in wanted.items()):
            return False
        applications = serve.status().applications
        deployments = applications["block"].deployments if "block" in applications else {}
        return "Artifact" in deployments and deployments["Artifact"].replica_states == {"RUNNING": self.replicas}

    def answers(self) -> bool:
        """Whether requests find their way to the application."""
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.address}/v2/health/ready").status_code == 200
        return False


@contextmanager
def deployed(artifact: Path, replicas: int, ranks: int, load: dict[str, object] | None = None) -> Iterator[Deployed]:
    """What `serve run` makes of a file, on a cluster with a node for each replica. `load`: options of each load."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    for _ in range(replicas):
        cluster.add_node(num_cpus=ranks)
    application = {
        "name": "block",
        "import_path": "aotair.serving.ray:app",
        "route_prefix": "/",
        "args": {"artifact": str(artifact), "load": load or {}},
        "deployments": [{"name": "Artifact", "num_replicas": replicas}],
    }
    file, port = artifact.parent / "serve.yaml", free_port()
    file.write_text(yaml.safe_dump({"http_options": {"port": port}, "applications": [application]}))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    command = [Path(sys.executable).parent / "serve", "run", "--address", cluster.address, "--non-blocking", file]
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths}, timeout=300)
        found = Deployed(f"http://127.0.0.1:{port}", replicas, ranks)
        _wait(lambda: found.full() and found.answers())
        yield found
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


Expected = tuple[dict[str, object], torch.Tensor]


@dataclass
class Found:
    """What clients have seen; `back`: seconds from the killing until there were as many replicas as before."""

    answered: int = 0
    retried: int = 0
    lost: int = 0
    wrong: int = 0
    back: float = float("nan")
    turn: Lock = field(default_factory=Lock)


def measure(cluster: Deployed, kill: str, clients: int, seconds: float) -> Found:
    """Load on an application, one of whose processes is killed meanwhile."""
    _wait(cluster.full)
    found, end, expected = Found(), time.monotonic() + seconds, _answers()
    threads = [Thread(target=_client, args=(n, cluster.address, end, found, expected)) for n in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(min(5.0, seconds / 4))
    victim, start = processes(kill)[0], time.monotonic()
    os.kill(victim, signal.SIGKILL)
    _wait(lambda: victim not in processes(kill) and cluster.full())
    found.back = time.monotonic() - start
    for thread in threads:
        thread.join()
    return found


def _wait(done: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("replicas are not back")
        time.sleep(0.1)


def _answers() -> list[Expected]:
    """Requests of all sizes, and what the original model answers to each."""
    model, found = load_model(job_of(parse_recipe(recipe(1)))), []
    generator = torch.Generator().manual_seed(1)
    for batch in (1, 2, 3, 4):
        for seq in (1, 4, 7):
            ids = torch.randint(24, (batch, seq), generator=generator)
            tensor = {"name": "ids", "shape": [batch, seq], "datatype": "INT64", "data": ids.flatten().tolist()}
            with torch.no_grad():
                found.append(({"inputs": [tensor]}, model(ids)))
    return found


def _client(number: int, address: str, end: float, found: Found, expected: Sequence[Expected]) -> None:
    chosen = random.Random(number)
    with httpx.Client(base_url=address, timeout=30) as client:
        while time.monotonic() < end:
            request, want = chosen.choice(expected)
            got, tries = _answer(client, request)
            with found.turn:
                found.retried += tries - 1
                found.answered += got is not None
                found.lost += got is None
                found.wrong += got is not None and not torch.allclose(got, want, atol=1e-5, rtol=1e-5)


def _answer(client: httpx.Client, request: object) -> tuple[torch.Tensor | None, int]:
    """What is answered at last, and at which try."""
    for number in range(1, TRIES + 1):
        try:
            answer = client.post("/v2/models/block/infer", json=request)
        except httpx.TransportError:
            time.sleep(PAUSE)
            continue
        if answer.status_code == 200:
            (output,) = answer.json()["outputs"]
            return torch.tensor(output["data"]).view(output["shape"]), number
        time.sleep(PAUSE)
    return None, TRIES


def processes(kind: str) -> list[int]:
    """The processes of a kind that run on this machine."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if (place / "cmdline").read_bytes().startswith(KINDS[kind]):
                    found.append(int(place.name))
            except OSError:
                continue  # it has ended meanwhile
    return sorted(found)


if __name__ == "__main__":
    main()

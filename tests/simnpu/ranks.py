"""How does a test run its functions on several simulated NPUs? One process for each rank, kept for many functions.

    with Ranks(4) as ranks:
        sums = ranks.run(function, 1, 2)  # function(1, 2) on every rank, a value from each

A function is found by its module and name, so it has to be at the top of a module, and what it takes and gives back
travels by pickle: numbers and CPU tensors. In it the process group is there, "hccl" for the NPU and "gloo" for the CPU.
"""

import multiprocessing
import pathlib
import tempfile
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any


class RankError(Exception):
    """A function raised on some ranks; `texts` has the traceback of each, None where it did not."""

    def __init__(self, texts: list[str | None]):
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text))
        self.texts = texts


def join(store: str, rank: int, count: int) -> None:
    """Make this process a rank of a new process group that meets in the file `store`."""
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,npu:hccl", store=dist.FileStore(store, count), rank=rank, world_size=count)


def _answer(function: Callable[..., object], arguments: tuple) -> tuple[object, str | None]:
    try:
        return function(*arguments), None
    except BaseException:  # the parent shows it
        return None, traceback.format_exc()


def _serve(connection: Connection, store: str, rank: int, count: int) -> None:
    import simnpu
    import torch

    torch.set_num_threads(1)
    simnpu.install()
    torch.npu.set_device(0)
    join(store, rank, count)
    while (work := connection.recv()) is not None:
        connection.send(_answer(*work))
    torch.distributed.destroy_process_group()


class Ranks:
    """Processes that are the ranks of one process group."""

    def __init__(self, count: int):
        self.folder = tempfile.TemporaryDirectory()
        spawn = multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for rank in range(count):
            ours, theirs = spawn.Pipe()
            self.connections.append(ours)
            arguments = (theirs, self.store("first"), rank, count)
            self.processes.append(spawn.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
            theirs.close()

    def store(self, name: str) -> str:
        """The file in which a process group of that name meets."""
        return str(pathlib.Path(self.folder.name) / name)

    def send(self, function: Callable[..., object], *arguments: object, only: Iterable[int] | None = None) -> None:
        """Begin a function on each rank, or of `only` these."""
        for rank in range(len(self.processes)) if only is None else only:
            self.connections[rank].send((function, arguments))

    def receive(self, only: Iterable[int] | None = None) -> list[Any]:
        """For each rank the value of the function that it ran, or a `RankError` with what it raised."""
        chosen = range(len(self.processes)) if only is None else only
        answers = [self.connections[rank].recv() for rank in chosen]
        return [RankError([text]) if text else value for value, text in answers]

    def outcomes(self, function: Callable[..., object], *arguments: object, only: list[int] | None = None) -> list[Any]:
        """Both."""
        self.send(function, *arguments, only=only)
        return self.receive(only)

    def run(self, function: Callable[..., object], *arguments: object, only: list[int] | None = None) -> list[Any]:
        """The function's value on each rank; raises when it raised on any."""
        found = self.outcomes(function, *arguments, only=only)
        if any(isinstance(one, RankError) for one in found):
            raise RankError([str(one) if isinstance(one, RankError) else None for one in found])
        return found

    def renew(self, name: str, function: Callable[[str, int, int], object], only: list[int] | None = None) -> None:
        """Let ranks leave their process group for another by `function(store, rank, count)`."""
        chosen = list(range(len(self.processes))) if only is None else only
        for place, rank in enumerate(chosen):
            self.send(function, self.store(name), place, len(chosen), only=[rank])
        for outcome in self.receive(chosen):
            if isinstance(outcome, RankError):
                raise outcome

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_error: object) -> None:
        for connection, process in zip(self.connections, self.processes, strict=True):
            if process.is_alive():
                connection.send(None)
        for process in self.processes:
            process.join(timeout=20)
            process.kill()
        self.folder.cleanup()

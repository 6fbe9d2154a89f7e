"""The CPU: memory is host memory, and a graph is the bound calls themselves."""

from collections.abc import Callable

import torch


class LaunchList:
    """Bound calls; a replay makes them in order."""

    def __init__(self, run: Callable[[], None]):
        self.replay = run

    def reset(self) -> None:
        del self.replay


class CPU:
    kind = "cpu"
    torch_device = torch.device("cpu")

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def place(self, constant: torch.Tensor) -> torch.Tensor:
        return constant

    def capture(self, run: Callable[[], None]) -> LaunchList:
        return LaunchList(run)
